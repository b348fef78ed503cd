"""Repeated blocks: found by structure, and only where they are."""

from __future__ import annotations

import pytest

from dovetail import Builder, Value, ops
from dovetail.dtypes import f32
from dovetail.runtime.compile import explain


def chain(layers: int, widths: tuple[int, ...] = (16, 16)) -> Builder:
    """Layers of a product, a norm by hand and a residual add, which no rule makes one."""
    b = Builder("chain")
    x: Value = b.input("x", f32[8, widths[0]])
    for i in range(layers):
        w = b.param(f"w{i}", f32[widths[0], widths[0]])
        y = ops.tanh(x @ w)
        x = x + y / ops.reduce_max(y, axes=(-1,))
    b.output("y", x)
    return b


@pytest.mark.slow
def test_equal_layers_are_one_block_as_often_as_they_come() -> None:
    report = explain(chain(7).graph(), target="cpu")
    (repeat,) = report.repeats
    assert repeat.count == len(repeat.kernels) == report.blocks
    assert repeat.count >= 6, "the first or the last may differ by what it reads or who reads it"
    listed = [name for copy in repeat.kernels for name in copy]
    assert len(set(listed)) == len(listed) and set(listed) <= {k.name for k in report.kernels}


@pytest.mark.slow
def test_what_does_not_repeat_is_no_block() -> None:
    assert explain(chain(1).graph(), target="cpu").repeats == ()


def test_kernels_that_read_other_types_are_no_repeats() -> None:
    """Four convolutions of one result type that took 345, 330, 98 and 96 µs were told as four times 345."""
    b = Builder("wider")
    x: Value = b.input("x", f32[1, 8, 16, 16])
    for i, channels in enumerate((8, 64, 8, 128)):
        w = b.param(f"w{i}", f32[16, channels, 1, 1])
        grown = ops.expand(ops.reduce_sum(x, axes=(-3,)), axis=-3, size=channels)
        x = ops.relu(ops.conv(grown, w))
    b.output("y", x)
    report = explain(b.graph(), target="cpu")
    kernels = {k.name: k for k in report.kernels}
    for repeat in report.repeats:
        for alike in zip(*repeat.kernels, strict=True):
            assert len({kernels[name].flops for name in alike}) == 1
