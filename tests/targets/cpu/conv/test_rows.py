"""Steps of a region on the rows of a convolution: drawn ones, by each of its kernels, against float64."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail import Graph, Program, Value, library, ops
from dovetail.dtypes import bf16, f16, f32, i8, i32, u8
from dovetail.ir.dtype import DType
from dovetail.ir.leaf import constant, input, param
from dovetail.ir.literal import Array
from dovetail.library.activation import Activation
from dovetail.plan.plan import Plan
from dovetail.targets.cpu import anchors
from dovetail.targets.cpu.isa import Host
from dovetail.targets.reference.interpreter import evaluate
from tests.codegen import generated
from tests.kernels.convolving import WIDE, on_a_machine_of
from tests.kernels.machines import AVX2, code_for
from tests.tolerances import assert_close

PASS = "fuse_epilogues"
VARIANTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "direct": ((2, 5, 30, 41), (13, 5, 3, 3), {"padding": (1, 1, 1, 1)}),
    "direct of groups": ((1, 6, 33, 16), (8, 3, 1, 3), {"groups": 2, "padding": (0, 1, 0, 1)}),
    "direct that strides": ((1, 6, 32, 32), (8, 6, 1, 1), {"strides": (2, 2)}),
    "pointwise": ((2, 130, 13, 17), (24, 130, 1, 1), {}),
    "pointwise of ragged filters": ((1, 300, 16, 16), (21, 300, 1, 1), {}),
    "few_pixels": ((2, 30, 7, 9), (64, 30, 3, 3), {"padding": (1, 1, 1, 1)}),
    "few_pixels of groups": ((2, 64, 9, 9), (128, 32, 3, 3), {"groups": 2, "padding": (1, 1, 1, 1)}),
    "few_pixels_kxk": ((1, 230, 9, 7), (32, 230, 3, 3), {"padding": (1, 1, 1, 1)}),
    "few_channels": ((2, 5, 33, 31), (62, 5, 5, 5), {"padding": (2, 2, 2, 2)}),
    "winograd": ((2, 33, 25, 31), (37, 33, 3, 3), {"padding": (1, 1, 1, 1)}),
    "depthwise": ((2, 24, 17, 13), (24, 1, 3, 3), {"groups": 24, "padding": (1, 1, 1, 1)}),
    "depthwise that strides": ((1, 9, 33, 35), (9, 1, 5, 5), {"groups": 9, "padding": (2,) * 4, "strides": (2, 2)}),
    "pointwise_packed": ((2, 256, 7, 7), (128, 256, 1, 1), {}),
    "pointwise_packed of ragged filters": ((2, 131, 9, 13), (122, 131, 1, 1), {}),
    "conv1d": ((2, 40, 25), (33, 40, 3), {"padding": (1, 1)}),
    "direct along a line": ((2, 6, 250), (33, 6, 3), {"padding": (1, 1)}),
}  # fmt: skip
"""An image, weights and attributes of each variant, on a machine of wide vectors."""


@pytest.fixture(autouse=True)
def every_operand_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a claim refuses because it is slower is right all the same."""
    monkeypatch.setattr(anchors, "STREAMED_TAPS", 1 << 30)


def convolution(variant: str, *, bias: bool = True, residual: bool = False, act: Activation = "none") -> Value:
    image, weights, attrs = VARIANTS[variant]
    ones = (1,) * (len(image) - 2)
    options: dict[str, Any] = {"strides": ones, "dilations": ones, "padding": (0,) * 2 * len(ones), **attrs}
    b = param("b", f32[(weights[0], *ones)]) if bias else None
    given = input("x", f32[image]), param("w", f32[weights]), b
    if not residual:
        return library.conv_bias_act(*given, act=act, **options)
    shape = library.conv_bias_act(*given, **options).shape
    return library.conv_bias_act(*given, input("r", f32[shape]), act=act, **options)


def arrays(values: tuple[Value, ...], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for v in values:
        shape = [n for n in v.shape if isinstance(n, int)]
        drawn = rng.normal(size=shape) if v.dtype.is_float else rng.integers(0, 9, shape)
        many = v.attrs["name"] == "w"
        found[v.attrs["name"]] = (drawn / np.sqrt(np.prod(shape[1:])) if many else drawn).astype(v.dtype.numpy)
    return found


def joined(outputs: Value | dict[str, Value], threads: int = 1, kernels: int = 1) -> Program:
    """The program of a convolution with its steps, one kernel."""
    program = dt.compile(Graph.of(outputs), threads=threads)
    found = [k for k in program.report.kernels if k.phase == "run"]
    assert len(found) == kernels and not any(k.on_host for k in found), program.report
    return program


def check(outputs: Value | dict[str, Value], kernels: int = 1) -> None:
    """One kernel gives what float64 gives, what two kernels give, and the same bits with two threads."""
    graph = Graph.of(outputs)
    params, feeds = arrays(graph.parameters, 0), arrays(graph.inputs, 1)
    got = joined(outputs, kernels=kernels).bind(params).run(feeds)
    again = joined(outputs, threads=2, kernels=kernels).bind(params).run(feeds)
    apart = dt.compile(graph, threads=1, without=[PASS]).bind(params).run(feeds)
    wide = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in {**params, **feeds}.items()}
    wanted = evaluate(graph, {n: wide[n] for n in feeds}, params={n: wide[n] for n in params}, lift=True)
    # Steps in a narrow dtype round as it does, whatever they give.
    narrow = {v.dtype for v in graph.values}
    rounded = bf16 if bf16 in narrow else f16 if f16 in narrow else f32
    for name, value in graph.outputs.items():
        assert got[name].tobytes() == again[name].tobytes()
        assert got[name].dtype == apart[name].dtype
        if value.dtype.is_float:
            assert_close(got[name].astype(rounded.numpy), wanted[name], rounded, scale=20.0)
            assert_close(got[name], apart[name], value.dtype, scale=20.0)
        else:
            # A float next to an integer is cut to either.
            away = np.abs(got[name].astype(np.int64) - wanted[name].astype(np.int64))
            assert away.max() <= (1 if rounded is f32 else 8) and (away <= 1).mean() > 0.95


def operand(drawn: random.Random, number: int, shape: tuple[Any, ...]) -> Value:
    """Another tensor: of every pixel, of every channel, of every image, of one element; f32 or narrower."""
    ones = (1,) * (len(shape) - 2)
    forms = [shape, (shape[1], *ones), (1, shape[1], *ones), (shape[0], 1, *ones), (1,), shape[1:], (1, 1, *shape[2:])]
    dtype = drawn.choice([f32, f32, f16, bf16])
    tensor = dtype[drawn.choice(forms)]
    z = drawn.choice([input, param])(f"z{number}", tensor)
    return z if dtype is f32 else ops.cast(z, dtype=f32)


BINARY: tuple[Callable[[Value, Value], Value], ...] = (
    lambda y, z: y * z,
    lambda y, z: y + z,
    lambda y, z: y - z * 0.5,
    ops.maximum,
    lambda y, z: ops.where(ops.less(y, z), y, z * 0.25),
    lambda y, z: y * ops.sigmoid(z),
)
UNARY: tuple[Callable[[Value], Value], ...] = (
    ops.tanh,
    ops.relu,
    lambda y: ops.leaky_relu(y, slope=0.1),
    lambda y: ops.log(ops.abs_(y) + 1.0),
    lambda y: ops.cast(ops.cast(y, dtype=f16), dtype=f32),
    lambda y: ops.cast(ops.cast(y, dtype=bf16), dtype=f32),
    lambda y: y * 0.5 + 1.0,
)


def region(drawn: random.Random, y: Value) -> Value:
    """A few steps, one of which reads another tensor, and maybe a cast."""
    count = drawn.randint(1, 3)
    for number in range(count):
        y = drawn.choice(BINARY)(y, operand(drawn, number, y.shape))
        y = drawn.choice(UNARY)(y) if drawn.random() < 0.6 else y
    last: DType = drawn.choice([f32, f32, f16, bf16, i8, u8, i32])
    if last is f32:
        return y
    return ops.cast(y if last.is_float else ops.minimum(ops.abs_(y) * 9.0, constant(100.0, f32)), dtype=last)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("variant", VARIANTS)
def test_drawn_regions(variant: str, seed: int) -> None:
    drawn = random.Random(f"{variant} {seed}")
    bias, residual = drawn.random() < 0.7, drawn.random() < 0.4
    acts: list[Activation] = ["none", "relu", "silu", "hard_swish"]
    act = drawn.choice(acts)
    check(region(drawn, convolution(variant, bias=bias, residual=residual, act=act)))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_drawn_regions_on_wide_vectors(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine_of(WIDE, monkeypatch)
    drawn = random.Random(f"wide {variant}")
    value = region(drawn, convolution(variant, residual=drawn.random() < 0.4))
    (kernel,) = [k for k in joined(value).report.kernels if k.phase == "run"]
    assert (kernel.form or "").split()[0] == variant.split()[0]
    check(value)


@pytest.mark.heavy
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "conv1d"])
def test_an_inner_value_that_others_read_is_written_too(variant: str) -> None:
    y = convolution(variant, act="relu")
    z = input("z", f32[y.shape])
    check({"y": ops.cast(y * z, dtype=f16), "inner": y})


AVX512 = Host("x86_64-unknown-linux-gnu", "skylake-avx512", "", 512, 32)
ASSEMBLED = {"avx512": (AVX512, generated.MACHINES["avx512"]), "avx2": (AVX2, generated.MACHINES["avx2"])}


@cache
def joined_plan(variant: str) -> Plan:
    """Of a convolution with a residual, an activation and steps: compiled here once for all machines."""
    y = convolution(variant, residual=True, act="relu")
    return joined(ops.cast(ops.tanh(y * input("z", f32[y.shape])), dtype=f16)).plan


@pytest.mark.heavy
@pytest.mark.parametrize("machine", ASSEMBLED)
@pytest.mark.parametrize("variant", VARIANTS)
def test_other_machines_have_code(variant: str, machine: str) -> None:
    plan = joined_plan(variant)
    here, device = ASSEMBLED[machine]
    made = dict(generated.modules(plan, device))
    assert any(name.startswith("epilogue") for name in made) or variant == "conv1d"
    # LLVM reads inline assembly of its own machine only.
    for text in made.values():
        assert "asm " in text or code_for(here, text)
