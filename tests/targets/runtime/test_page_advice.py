"""Memory that goes back to the system in parts."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from dovetail.targets.runtime.arrays.page_advice import give_back, reserve, trim, unload

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize("count", [0, 1, PAGE, 5 * PAGE + 3])
def test_reserved_bytes_can_be_written(count: int) -> None:
    pages = reserve(count)
    pages[:] = 7
    assert pages.size == count and (pages == 7).all()


@pytest.mark.parametrize(("start", "end"), [(0, 4 * PAGE), (1, 3 * PAGE + 1), (PAGE, 2 * PAGE), (5, 9), (PAGE, PAGE)])
def test_what_is_given_back_takes_nothing_beside_it(start: int, end: int) -> None:
    pages = reserve(4 * PAGE)
    pages[:] = 7
    give_back(pages, start, end)
    assert (pages[:start] == 7).all() and (pages[end:] == 7).all()
    pages[:] = 8
    assert (pages == 8).all()


def test_memory_of_others_is_left_alone() -> None:
    array = np.full(4 * PAGE, 7, np.uint8)
    give_back(array, 0, array.size)
    unload(array)
    trim()
    assert (array == 7).all()


@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_COPY, mmap.ACCESS_WRITE])
def test_a_mapped_file_can_be_read_again(tmp_path: Path, access: int) -> None:
    """One that was written to in memory alone keeps what was written."""
    content = np.random.default_rng(0).integers(0, 256, 3 * PAGE + 100, np.uint8)
    path = tmp_path / "weights"
    path.write_bytes(content.tobytes())
    with open(path, "r+b") as file:
        array = np.frombuffer(mmap.mmap(file.fileno(), 0, access=access), np.uint8)
    if access == mmap.ACCESS_COPY:
        array[PAGE + 5] ^= 1
        content[PAGE + 5] ^= 1
    unload(array[64:])
    assert array.tobytes() == content.tobytes()
