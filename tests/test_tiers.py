"""Tiers: the standard and the exhaustive tier are all tests, each in one of them; in both if examples are drawn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiers import MANY, SLOW, SPREAD, draws_examples, exhaustive_ones, spread, standard_ones

ROOT = Path(__file__).resolve().parent.parent


@given(st.integers(0, 5000), st.integers(2, 20))
def test_a_spread_has_both_ends_and_no_case_twice(count: int, most: int) -> None:
    found = spread(count, most)
    assert len(found) == len(set(found)) == min(count, most)
    assert found == sorted(found)
    assert not found or (found[0], found[-1]) == (0, count - 1)


def test_the_tiers_share_the_tests_of_this_process(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    standard, exhaustive = standard_ones(items), exhaustive_ones(items)
    assert {*standard, *exhaustive} == set(items)
    assert {*standard} & {*exhaustive} == {item for item in standard if draws_examples(item)}


@pytest.mark.parametrize("count", range(20))
def test_few_cases_are_all_kept(count: int) -> None:
    assert spread(count, 20) == list(range(count))


def test_a_listed_test_keeps_a_few_cases(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    items = [item for item in request.session.items if item.name.startswith("test_few_cases_are_all_kept[")]
    listed = tmp_path / "listed.txt"
    listed.write_text("tests/test_tiers.py::test_few_cases_are_all_kept", encoding="utf-8")
    monkeypatch.setattr("tests.tiers.MANY", listed)
    assert [items.index(item) for item in standard_ones(items)] == spread(len(items), SPREAD)
    for item in items[:1]:
        item.add_marker("exhaustive")
    assert exhaustive_ones(items)[:1] == items[:1]


@pytest.mark.parametrize("path", [MANY, SLOW], ids=lambda path: path.name)
def test_lists_name_tests_that_exist(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").split():
        file, _, name = line.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), f"{path.name} names {line}, which is gone: make slow"
