"""Shared memory of the last pass of a persistent kernel."""

from __future__ import annotations

from dovetail.ir.dtype import u8
from dovetail.kernels.loops.ir import Alloc
from dovetail.kernels.loops.persistent.kernel import Room, offsets


def _room(name: str, slots: set[int], last: set[int]) -> Room:
    return Room(Alloc(name, u8, 1024, "shared"), frozenset(slots), frozenset(last))


def test_parts_after_all_layers_take_the_memory_of_what_the_last_pass_does_not_run() -> None:
    skipped, ran = _room("skipped", {1, 2}, set()), _room("ran", {3}, {3})
    assert offsets([skipped, ran, _room("after", set(), {1, 2})], 0, 1024) == {"skipped": 0, "ran": 0, "after": 0}
    assert offsets([skipped, ran, _room("after", set(), {2, 3})], 0, 1024) is None
