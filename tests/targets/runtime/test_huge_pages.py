"""Arrays in huge pages: side by side, apart from each other, and freed with the last of a mapping."""

from __future__ import annotations

import gc
import mmap
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from dovetail.ir.literal import Array
from dovetail.targets.runtime.arrays import huge_pages
from dovetail.targets.runtime.arrays.address import address
from dovetail.targets.runtime.arrays.aligned import ALIGNMENT
from dovetail.targets.runtime.arrays.huge_pages import HUGE, HugePages

needs_advice = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no huge pages")
KIB = 1 << 10


@needs_advice
def test_arrays_follow_each_other_from_the_boundary_of_a_huge_page() -> None:
    pages = HugePages()
    first, second = pages.array((100 * KIB + 1,), np.uint8), pages.array((64, KIB), np.uint16)
    assert address(first) % HUGE == 0
    assert address(second) == address(first) + 100 * KIB + ALIGNMENT
    assert (second.shape, second.dtype) == ((64, KIB), np.uint16)


def test_small_arrays_are_numpys() -> None:
    small = HugePages().array((3, 5), np.float32)
    assert small.shape == (3, 5) and address(small) % ALIGNMENT == 0


@needs_advice
def test_an_array_may_be_larger_than_a_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_MAPPING", 128 * KIB)
    pages = HugePages()
    sizes = [70 * KIB, 300 * KIB, 70 * KIB]
    arrays = [pages.array((size,), np.uint8) for size in sizes]
    for number, array in enumerate(arrays):
        array[...] = number
    assert [array.size for array in arrays] == sizes
    assert [set(array.tolist()) for array in arrays] == [{0}, {1}, {2}]


@needs_advice
def test_a_mapping_dies_with_its_last_array() -> None:
    pages = HugePages()
    first, second = pages.array((70 * KIB,), np.uint8), pages.array((70 * KIB,), np.uint8)
    mapping: Any = first.base
    seen: weakref.ref[Array] = weakref.ref(mapping)
    assert second.base is mapping
    del mapping, first
    gc.collect()
    assert seen() is not None
    del second
    gc.collect()
    assert seen() is None
    pages.array((70 * KIB,), np.uint8)[...] = 1


@needs_advice
def test_threads_get_parts_of_their_own() -> None:
    pages = HugePages()
    found: list[Array] = []

    def work(number: int) -> None:
        for _ in range(20):
            array = pages.array((64 * KIB,), np.uint8)
            array[...] = number
            found.append(array)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted([int(array[0]) for array in found]) == sorted([*range(4)] * 20)
    assert all((array == array[0]).all() for array in found)


@pytest.mark.parametrize("advice", [None, -1])
def test_without_huge_pages_arrays_are_numpys(monkeypatch: pytest.MonkeyPatch, advice: int | None) -> None:
    """Systems that do not know them, and those that refuse."""
    monkeypatch.setattr(huge_pages, "_ADVICE", advice)
    array = HugePages().array((64, KIB), np.float32)
    assert array.shape == (64, KIB) and address(array) % ALIGNMENT == 0
