"""Tiers: the standard and the exhaustive tier are all tests, each in one of them; in both if examples are drawn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.scheduling import SerialLast
from tests.tiers import MANY, SLOW, Totals, draws_examples, exhaustive_ones, mean_seconds, standard_ones

ROOT = Path(__file__).resolve().parent.parent


def test_the_tiers_share_the_tests_of_this_process(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    standard, exhaustive = standard_ones(items), exhaustive_ones(items)
    assert {*standard, *exhaustive} == set(items)
    assert {*standard} & {*exhaustive} == {item for item in standard if draws_examples(item)}


def test_a_listed_test_keeps_its_first_case(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    items = [item for item in request.session.items if item.name.startswith("test_lists_name_tests_that_exist[")]
    listed = tmp_path / "listed.txt"
    listed.write_text("tests/test_tiers.py::test_lists_name_tests_that_exist", encoding="utf-8")
    monkeypatch.setattr("tests.tiers.MANY", listed)
    assert standard_ones(items) == items[:1]
    for item in items[:1]:
        item.add_marker("exhaustive")
    assert exhaustive_ones(items)[:1] == items[:1]


@pytest.mark.parametrize("path", [MANY, SLOW], ids=lambda path: path.name)
def test_lists_name_tests_that_exist(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").split():
        file, _, name = line.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), f"{path.name} names {line}, which is gone: make slow"


def test_files_that_take_long_exist() -> None:
    for file, seconds in mean_seconds().items():
        assert (ROOT / file).is_file() and seconds > 0, f"seconds.txt names {file}, which is gone: make slow"


def test_files_that_did_not_run_keep_their_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Torch and JAX are in an environment of their own: where they are absent, their files take no time."""
    here, other = "tests/test_tiers.py", "tests/test_words.py"
    before = {
        "MANY": [f"{here}::test_a", f"{other}::test_b"],
        "SECONDS": [f"{here} 9", f"{other} 3", "tests/gone.py 5"],
    }
    for name, lines in before.items():
        monkeypatch.setattr(f"tests.tiers.{name}", tmp_path / name)
        (tmp_path / name).write_text("\n".join([*lines, ""]), encoding="utf-8")
    totals = Totals()
    totals.seconds = {f"{here}::test_c": [2.0, 4.0]}
    totals.pytest_sessionfinish()
    found = {name: (tmp_path / name).read_text(encoding="utf-8").splitlines() for name in before}
    assert found == {"MANY": [f"{here}::test_c", f"{other}::test_b"], "SECONDS": [f"{here} 3", f"{other} 3"]}


class Recorder:
    """A worker that notes what it is given."""

    shutting_down = False

    def __init__(self) -> None:
        self.given: list[int] = []

    def shutdown(self) -> None:
        self.shutting_down = True

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.given += indices


def test_the_file_that_takes_longest_comes_first(request: pytest.FixtureRequest) -> None:
    """A file of few long tests that came last would keep one process busy while the others have ended."""
    (longest, _), *_ = sorted(mean_seconds().items(), key=lambda known: -known[1])
    collected = [*(f"tests/test_tiers.py::test_{i}" for i in range(150)), f"{longest}::test_one"]
    scheduler, worker = SerialLast(request.config), Recorder()
    scheduler.add_node(worker)
    scheduler.add_node_collection(worker, collected)
    scheduler.schedule()
    assert worker.given == [150]
    scheduler.mark_test_complete(worker, 150)
    assert worker.given == [150, *range(150)]
