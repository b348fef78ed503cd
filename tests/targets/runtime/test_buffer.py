"""Buffers of host memory: aligned, without copies, and reused."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.errors import BindError
from dovetail.targets.runtime.arrays.buffer import MOST_FREE, Allocator, Buffer, BufferPool, HostAllocator, HostBuffer


def allocator(limit: int = 0) -> HostAllocator:
    return HostAllocator(64, "a test", limit)


def test_host_memory_has_the_protocols_of_a_device() -> None:
    memory: Allocator[HostBuffer] = allocator()
    buffer: Buffer = memory.allocate(10)
    assert buffer.nbytes == 10 and buffer.device == "cpu" and buffer.address % 64 == 0


def test_bytes_are_copied_to_and_from_arrays() -> None:
    buffer = allocator().allocate(64)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    buffer.copy_from_host(x)
    assert buffer.host_view is buffer.array
    np.testing.assert_array_equal(buffer.array[:32].view(np.float32), x.reshape(-1))
    back = np.zeros_like(x)
    buffer.copy_to_host(back)
    np.testing.assert_array_equal(back, x)


def test_other_libraries_see_the_same_bytes() -> None:
    buffer = allocator().allocate(16)
    buffer.array[:] = 0
    shared = np.from_dlpack(buffer)
    buffer.array[3] = 7
    assert shared[3] == 7 and buffer.__dlpack_device__() == (1, 0)


def test_more_than_the_limit_is_refused() -> None:
    with pytest.raises(BindError, match="a test takes 101 bytes"):
        allocator(100).allocate(101)


def test_a_pool_hands_out_freed_buffers_of_about_the_size() -> None:
    pool = BufferPool(allocator())
    large, small = pool.allocate(1 << 20), pool.allocate(1000)
    pool.free(large)
    pool.free(small)
    assert pool.allocate(900) is small
    assert pool.allocate(900) is not large, "a large buffer is not wasted on a small request"
    assert pool.allocate(1 << 20) is large


def test_a_pool_holds_few_buffers() -> None:
    pool = BufferPool(allocator())
    buffers = [pool.allocate(100) for _ in range(MOST_FREE + 8)]
    for buffer in buffers:
        pool.free(buffer)
    assert len({id(pool.allocate(100)) for _ in buffers} & set(map(id, buffers))) == MOST_FREE
