"""A fixed part of ONNX's suite: the first cases of each operator. `make conformance` runs all, and writes the list."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.conformance.page import SUMMARY
from tests.conformance.suite import ROOT, Case, cases, judge

LINES = [line.split() for line in Path(__file__).with_name("quick.txt").read_text(encoding="utf-8").splitlines()]
PAGE = ROOT / "docs" / "conformance.md"
README = ROOT / "README.md"
ROW = re.compile(r"^\| ([\w()-]+) \| (\d*) \| (\d*) \| (\d*) \| (\d*) \|$", re.MULTILINE)


@cache
def by_name() -> dict[str, Case]:
    return {case.name: case for case in cases(large=False)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for _, name in LINES])
def test_case_passes(name: str) -> None:
    outcome = judge(by_name()[name])
    assert outcome.verdict == "passed", outcome.why


def rows(part: str) -> dict[str, list[int]]:
    """The table of one part of the page: passed, wrong, unsupported, errors."""
    text = PAGE.read_text(encoding="utf-8").split(f"## By {part}\n")[1].split("\n## ")[0]
    return {found[1]: [int(n or 0) for n in found.groups()[1:]] for found in ROW.finditer(text)}


@pytest.mark.slow
def test_every_operator_that_passes_has_a_case_here() -> None:
    listed = {operator for operator, _ in LINES}
    assert not {op for op, (passed, *_) in rows("operator").items() if passed} - listed
    assert len({name for _, name in LINES}) == len(LINES)


@pytest.mark.exhaustive
def test_the_page_adds_up() -> None:
    found = SUMMARY.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    *parts, total = map(int, found.groups())
    assert sum(parts) == total == len(by_name())
    for part in ("kind", "operator"):
        assert [sum(column) for column in zip(*rows(part).values(), strict=True)] == parts


def test_nothing_is_wrong() -> None:
    assert all(wrong == error == 0 for _, wrong, _, error in rows("operator").values())


def test_the_readme_has_the_numbers_of_the_page() -> None:
    shown = SUMMARY.findall(README.read_text(encoding="utf-8"))
    assert shown and set(shown) == set(SUMMARY.findall(PAGE.read_text(encoding="utf-8")))
