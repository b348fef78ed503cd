"""What the tests of the attend kernel share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail import Graph, Value
from dovetail.dtypes import f32
from dovetail.ir.dim import Size
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close

NAMES = ("attention", "rope_attention")


def compiled(graph: Graph) -> NativeRunner:
    """The graph with its attention in a kernel."""
    native = NativeGraph(make_plan(graph, target=CPU))
    assert not [s.name for s in native.on_host if s.value.op.name in NAMES], "it runs on the host"
    return native.bind({})


def check(graph: Graph, feeds: Mapping[str, Array], runner: NativeRunner | None = None) -> Array:
    """What the kernel gives, after it was compared."""
    (got,) = (runner or compiled(graph)).run(feeds).values()
    with np.errstate(all="ignore"):
        (expected,) = evaluate(graph, feeds, lift=True).values()
    assert_close(got, expected, f32)
    return got


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).normal(size=shape).astype(np.float32)


def heads(name: str, *shape: Size) -> Value:
    return input(name, f32[shape])
