"""Cases on several processes: one that hangs or dies is one error, and the others go on."""

from __future__ import annotations

import os
import time

import pytest

from tests.conformance.page import as_page, as_text, quick, reason, summary
from tests.conformance.suite import Case, Outcome
from tests.conformance.workers import outcomes

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")


def case(name: str) -> Case:
    return Case("node", name, print, [None])


def act(case: Case) -> Outcome:
    """What the name says: die, hang, or pass."""
    if "die" in case.name:
        os._exit(7)
    if "hang" in case.name:
        time.sleep(60)
    return Outcome(case.kind, case.name, case.operator, "passed", "", 0.01)


@pytest.mark.exhaustive
@pytest.mark.parametrize("processes", [1, 3])
def test_one_that_dies_or_hangs_is_one_error(processes: int) -> None:
    names = ["test_add", "test_die", "test_add_hang", "test_mul", "test_die_again", "test_relu"]
    listed = list(outcomes([case(n) for n in names], processes=processes, most_seconds=2.5, judge=act))
    found = {o.name: o for o in listed}
    assert len(listed) == len(found) == len(names)
    assert {n for n, o in found.items() if o.verdict == "error"} == {"test_die", "test_add_hang", "test_die_again"}
    assert found["test_die"].why == "the process ended with code 7"
    assert found["test_add_hang"].why == "it takes longer than 2.5 s"
    assert found["test_add_hang"].operator == "Add"


def tell(case: Case) -> Outcome:
    """Which process judged a case; one that is broken stays so."""
    verdict = "error" if "broken" in case.name else "passed"
    return Outcome(case.kind, case.name, case.operator, verdict, str(os.getpid()))


@pytest.mark.slow
def test_another_process_replaces_one_that_had_an_error() -> None:
    names = ["test_add", "test_mul_broken", "test_relu", "test_mul"]
    found = [o.why for o in outcomes([case(n) for n in names], processes=1, judge=tell)]
    assert found[0] == found[1] != found[2] == found[3]


def test_cases_that_are_late_are_not_run() -> None:
    names = ["test_add", "test_hang", "test_mul"]
    found = [o.name for o in outcomes([case(n) for n in names], processes=1, within=1.0, judge=act)]
    assert found == ["test_add"]


def test_nothing_to_do_is_no_failure() -> None:
    assert list(outcomes([], processes=2)) == []


MADE = [
    Outcome("node", "test_add", "Add", "passed", "", 0.1),
    Outcome("node", "test_add_bcast", "Add", "passed", "", 0.9),
    Outcome("node", "test_add_more", "Add", "passed", "", 0.1),
    Outcome("node", "test_add_third", "Add", "passed", "", 0.1),
    Outcome("node", "test_sce_mean", "SoftmaxCrossEntropyLoss", "unsupported", "1 operator of this model is not "
            "supported:\n  ai.onnx.ml.Odd: the Odd node 'y'\n  hint: more"),
    Outcome("node", "test_sce_mean_expanded", "(several)", "unsupported", "Odd: a | 'x'\n  at: it"),
    Outcome("simple", "test_mul", "Mul", "wrong", "1 is not 2"),
]  # fmt: skip


def test_the_summary_counts() -> None:
    assert summary(MADE) == "conformance: 4 passed, 1 wrong, 2 unsupported, 0 errors of 7"
    assert as_text(MADE, verbose=False).endswith(summary(MADE))
    assert "operator" in as_text(MADE, verbose=False) and "operator" not in as_text(MADE, verbose=False, tables=False)


def test_reasons_are_short() -> None:
    assert reason(MADE[4]) == "there is no rule for ai.onnx.ml.Odd"
    assert reason(MADE[5]) == "Odd: a | …"


def test_the_page_has_both_tables_and_the_reasons() -> None:
    page = as_page(MADE)
    assert "| node | 4 |  | 2 |  |" in page and "| simple |  | 1 |  |  |" in page
    assert "| SoftmaxCrossEntropyLoss |  |  | 2 |  |" in page, "what writes out a function belongs to the function"
    assert "| 1 | Odd: a \\| … | SoftmaxCrossEntropyLoss |" in page


def test_the_quick_part_is_the_first_cases_of_each_operator() -> None:
    assert quick(MADE) == ["Add test_add", "Add test_add_more"]


def test_verbose_says_why_something_is_unsupported() -> None:
    assert "Odd node" in as_text(MADE, verbose=True) and "Odd node" not in as_text(MADE, verbose=False)
