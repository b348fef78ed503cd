"""Weights without numbers that are slow to multiply with."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.targets.cpu.conv.packing import Packing
from dovetail.targets.cpu.denormals import as_before, normal
from dovetail.targets.runtime.arrays.aligned import on_a_line


def test_normal_numbers_are_left_as_they_are() -> None:
    x = on_a_line(np.array([[0.0, -0.0, 1e-37], [np.nan, -np.inf, 3.0]], np.float32))
    assert normal(x) is x
    assert as_before(x, x.shape) is x


def test_tiny_numbers_become_the_smallest_normal_one_and_come_back() -> None:
    x = np.array([[1e-40, -0.0, 1.0], [-1e-45, np.nan, -1e-38]], np.float32)
    found = normal(x)
    expected = np.array([2.0**-126, -0.0, 1.0, -(2.0**-126), np.nan, -(2.0**-126)], np.float32)
    np.testing.assert_array_equal(found[:6], expected)
    assert (np.signbit(found[:6]) == np.signbit(expected)).all()
    assert (as_before(found, x.shape).view(np.uint32) == x.view(np.uint32)).all()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("tiny", [False, True])
def test_packed_filters_come_back(groups: int, tiny: bool) -> None:
    w = np.random.default_rng(0).normal(size=(14, 3, 3, 2)).astype(np.float32)
    if tiny:
        w[:, 1] *= np.float32(1e-39)
    packing = Packing(groups, 4)
    (found,) = packing.unpack(packing(w), [w.shape])
    assert (found.view(np.uint32) == w.view(np.uint32)).all()
