"""Arrays that begin with a line of the caches."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.targets.runtime.arrays.aligned import ALIGNMENT, aligned, on_a_line


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (200, 1000)])
def test_they_begin_with_a_line(shape: tuple[int, ...]) -> None:
    found = aligned(shape)
    assert found.shape == shape and found.dtype == np.float32
    assert found.ctypes.data % ALIGNMENT == 0


@pytest.mark.parametrize("offset", [0, 4, 60])
def test_what_does_not_is_copied(offset: int) -> None:
    whole = aligned((32,))
    whole[:] = np.arange(32)
    part = whole[offset // 4 :][:16].reshape(2, 8)
    found = on_a_line(part)
    assert found.ctypes.data % ALIGNMENT == 0 and (found is part) == (offset == 0)
    np.testing.assert_array_equal(found, part)
