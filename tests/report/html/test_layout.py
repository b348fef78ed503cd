"""The whole layout: every item is drawn once, and every value has a way to its reader."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.report.html.layout import Layout, lay_out
from dovetail.report.runs import Item


def random_items(seed: int, count: int) -> list[Item]:
    rng = random.Random(seed)
    items: list[Item] = []
    for i in range(count):
        near = [j for j in range(max(0, i - 6), i) if rng.random() < 0.3]
        far = [rng.randrange(i)] if i and rng.random() < 0.1 else []
        operands = tuple(dict.fromkeys(near + far))
        items.append(Item(rng.choice("abc"), 20.0, 10.0, operands, late=not operands and rng.random() < 0.5))
    return items


def check(layout: Layout, items: list[Item]) -> None:
    """Bands cover all, and each operand of a copy comes from the copy itself or in at an entry."""
    assert sorted(layout.order) == list(range(len(items)))
    at = 0
    for band in layout.bands:
        run = band.run
        assert run.start == at and run.period > 0
        at = run.end
        inner = {(w.source, w.target) for w in band.drawing.wires if w.source >= 0}
        entered = {pair for entry in band.entries for pair in entry}
        shown = run.start + run.period if run.count > 1 else run.start
        for i in range(run.period):
            assert len({items[layout.order[run.start + c * run.period + i]].key for c in range(run.count)}) == 1
            for k, j in enumerate(layout.operands[shown + i]):
                assert ((j - shown, i) in inner) if j >= shown else ((i, k) in entered)
        for copy in range(run.start, run.end, run.period):
            for entry in band.entries:
                sources = {layout.operands[copy + i][k] for i, k in entry}
                assert len(sources) == 1 and max(sources) < copy, "one value comes in at an entry, from above"
        ports = run.period + len(band.exits) + len(band.entries)
        assert len(band.drawing.x) == len(band.drawing.y) == ports
        for wire in band.drawing.wires:
            assert -len(band.entries) <= wire.source < run.period
            assert 0 <= wire.target < run.period + len(band.exits)
    assert at == len(items)


@given(st.integers(0, 10_000), st.integers(0, 60))
def test_everything_has_a_place_and_a_way(seed: int, count: int) -> None:
    items = random_items(seed, count)
    layout = lay_out(items)
    check(layout, items)
    place = {item: at for at, item in enumerate(layout.order)}
    wanted = {(place[i], place[j]) for i, item in enumerate(items) for j in item.operands}
    assert wanted == {(i, j) for i, operands in enumerate(layout.operands) for j in operands}


def test_copies_that_are_fed_by_one_value_and_the_first_by_two() -> None:
    items = [Item("in", 20.0, 10.0, ()), Item("norm", 20.0, 10.0, (0,))]
    sources = (0, 1)
    for _ in range(4):
        at = len(items)
        items += [Item("a", 20.0, 10.0, (sources[1],)), Item("b", 20.0, 10.0, (at, sources[0]))]
        sources = (at + 1, at + 1)
    layout = lay_out(items)
    check(layout, items)
    assert [(band.run.period, band.run.count, len(band.entries)) for band in layout.bands[1:]] == [(2, 4, 2)]


def test_what_leaves_a_copy_has_an_exit() -> None:
    items = random_items(7, 200)
    layout = lay_out(items)
    for band in layout.bands:
        run = band.run
        for reader, operands in enumerate(layout.operands):
            for j in operands:
                begin = j - (j - run.start) % run.period
                if run.start <= j < run.end and reader >= begin + run.period:
                    assert j - begin in band.exits


@pytest.mark.slow
def test_a_long_chain_is_cut_and_a_repeated_one_is_folded() -> None:
    chain = [Item(i, 20.0, 10.0, (i - 1,) if i else ()) for i in range(5000)]
    layout = lay_out(chain)
    check(layout, chain)
    assert max(band.drawing.height for band in layout.bands) < 5000
    same = [Item("a", 20.0, 10.0, (i - 1,) if i else ()) for i in range(5000)]
    assert len(lay_out(same).bands) <= 2
