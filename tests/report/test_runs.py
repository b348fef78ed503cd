"""Repeated runs: what is folded, where it is cut, and what is not."""

from __future__ import annotations

from dovetail.report.runs import Item, Run, find_runs, level_order


def item(key: str, *operands: int, late: bool = False) -> Item:
    return Item(key, 10.0, 10.0, operands, late)


def blocks(count: int) -> list[Item]:
    """An input, blocks of four with a shortcut around each, and an end."""
    items = [item("in")]
    for _ in range(count):
        start = len(items) - 1
        items += [item("a", start), item("b", start + 1), item("c", start + 2), item("join", start, start + 3)]
    return [*items, item("out", len(items) - 1)]


def test_blocks_one_behind_the_other_are_one_run() -> None:
    assert find_runs(blocks(5)) == [Run(1, 4, 5)]
    assert Run(1, 4, 5).spared == 16 and Run(1, 4, 5).end == 21


def test_a_run_is_cut_where_the_fewest_values_cross() -> None:
    """Joins stand before the first block as well as behind each: the cut is still behind the join."""
    items = [item("in"), item("join", 0)]
    for _ in range(4):
        start = len(items) - 1
        items += [item("a", start), item("b", start + 1), item("join", start, start + 2)]
    assert find_runs(items) == [Run(2, 3, 4)]


def test_what_looks_alike_and_is_wired_otherwise_is_no_run() -> None:
    items = [item("in")]
    for number in range(4):
        start = len(items) - 1
        far = start if number % 2 else max(start - 4, 0)
        items += [item("a", start), item("b", start + 1), item("c", start + 2), item("join", far, start + 3)]
    assert all(run.count < 4 for run in find_runs(items))


def test_little_is_not_folded() -> None:
    assert not find_runs([item("in"), item("a", 0), item("a", 1), item("b", 2)])
    assert not find_runs([])


def test_two_kinds_of_blocks_are_two_runs() -> None:
    items = blocks(3)[:-1]
    for _ in range(3):
        start = len(items) - 1
        items += [item("d", start), item("e", start + 1), item("f", start + 2)]
    assert find_runs(items) == [Run(1, 4, 3), Run(13, 3, 3)]


def test_what_all_blocks_read_goes_before_them() -> None:
    """A mask that is written inside the first block would make it differ from the others."""
    items = [item("in"), item("a", 0), item("mask", 0), item("more", 2), item("b", 1, 3)]
    for _ in range(5):
        start = len(items) - 1
        items += [item("a", start), item("b", start + 1, 3)]
    order = level_order(items)
    assert [items[i].key for i in order[:3]] == ["in", "mask", "more"]
    place = {i: at for at, i in enumerate(order)}
    ordered = [item(str(items[i].key), *(place[j] for j in items[i].operands)) for i in order]
    assert find_runs(ordered) == [Run(3, 2, 6)]


def test_what_is_late_stands_right_before_its_first_reader() -> None:
    items = [item("weights", late=True), item("in"), item("a", 1), item("b", 2), item("c", 3, 0), item("d", 4)]
    keys = [items[i].key for i in level_order(items)]
    assert keys.index("weights") < keys.index("c") and keys.index("weights") > keys.index("a")


def test_an_order_keeps_operands_first() -> None:
    items = blocks(6)
    place = {i: at for at, i in enumerate(level_order(items))}
    assert all(place[j] < place[i] for i, it in enumerate(items) for j in it.operands)
