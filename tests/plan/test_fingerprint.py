"""Fingerprints: equal where nothing differs, different wherever code or results do."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.declare import FusedOp, fused_op
from dovetail.dtypes import bool_, f32, f64, i32
from dovetail.errors import OptionError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.fact import Constraint
from dovetail.ir.graph import Subgraph
from dovetail.ir.literal import Literal
from dovetail.ir.origin import Origin
from dovetail.ops.region import region
from dovetail.plan import fingerprint as module
from dovetail.plan.fingerprint import content, fingerprint

X, Y = leaf.input("x", f32[4, 6]), leaf.input("y", f32[4, 6])
W = leaf.param("w", f32[6, 6])


def mark(graph: Graph | Value, target: str = "cpu", alignment: int = 64, **options: Any) -> str:
    whole = graph if isinstance(graph, Graph) else Graph.of(graph)
    return fingerprint(whole, target=target, alignment=alignment, options=options)


def constant(*numbers: float) -> Value:
    return leaf.constant(np.array(numbers), f32)


def declared(factor: float) -> FusedOp[...]:
    def scaled(x: Value) -> Value:
        return x * factor

    return fused_op(scaled)


def chosen(index: int) -> Value:
    given = leaf.argument(0, f32[4, 6])
    branches = (Subgraph((f32[4, 6],), (given * 2.0,)), Subgraph((f32[4, 6],), (given + 1.0,)))
    flag = leaf.input("flag", bool_[()])
    return ops.if_(flag, X, then=branches[index], otherwise=branches[1 - index])[0]


def in_region(step: Value) -> Value:
    return region(Subgraph((f32[4, 6], f32[4, 6]), (step,)), [X, Y])


FIRST, SECOND = leaf.argument(0, f32[4, 6]), leaf.argument(1, f32[4, 6])
ASSUMED = Constraint(symbol("s"), "at_least", 3, "a slice")

DIFFERENT: list[tuple[Graph | Value, Graph | Value]] = [
    (X + Y, X * Y),
    (X - Y, Y - X),
    (ops.flip(X, axes=(0,)), ops.flip(X, axes=(1,))),
    (ops.reduce_sum(X, axes=(0,)), ops.reduce_sum(X, axes=(1,))),
    (ops.slice_(X, axis=1, start=0, stop=2), ops.slice_(X, axis=1, start=2, stop=4)),
    (ops.slice_(X, axis=1, start=0, stop=3, step=2), ops.slice_(X, axis=1, start=0, stop=4, step=2)),
    (ops.cum_sum(X, axis=1), ops.cum_sum(X, axis=1, exclusive=True)),
    (X + constant(1.0), X + constant(2.0)),
    (X * constant(0.0), X * constant(-0.0)),
    (constant(*range(100)), constant(*range(99), 98)),
    (leaf.constant(np.zeros((2, 3)), f32), leaf.constant(np.zeros((3, 2)), f32)),
    (leaf.constant(np.zeros(4), f32), leaf.constant(np.zeros(4), i32)),
    (leaf.input("x", f32[4]), leaf.input("x", f32[5])),
    (leaf.input("x", f32[4]), leaf.input("x", f64[4])),
    (leaf.input("x", f32["s"]), leaf.input("x", f32["t"])),
    (leaf.input("x", f32[4]), leaf.input("z", f32[4])),
    (leaf.input("x", f32[4]), leaf.param("x", f32[4])),
    (Graph.of({"a": X}), Graph.of({"b": X})),
    (Graph.of({"a": X, "b": Y}), Graph.of({"b": Y, "a": X})),
    (Graph.of({"a": X, "b": Y}), Graph.of({"a": Y, "b": X})),
    (Graph.of(X, inputs=(X, Y)), Graph.of(X, inputs=(X,))),
    (Graph.of(X + Y, inputs=(X, Y)), Graph.of(X + Y, inputs=(Y, X))),
    (Graph.of(X), replace(Graph.of(X), assumed=(ASSUMED,))),
    (declared(2.0)(X), declared(3.0)(X)),
    (chosen(0), chosen(1)),
    (in_region(FIRST * SECOND), in_region(FIRST + SECOND)),
    (in_region(FIRST - SECOND), in_region(SECOND - FIRST)),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_differs_is_told_apart(one: Graph | Value, other: Graph | Value) -> None:
    assert mark(one) == mark(one)
    assert mark(one) != mark(other)


def test_target_version_alignment_and_options_count(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = [
        mark(X),
        mark(X, target="cuda"),
        mark(X, alignment=128),
        mark(X, fast=True),
        mark(X, fast=False),
        mark(X, fast=1),
        mark(X, fast="True"),
        mark(X, fast=None),
        mark(X, fast=0.0),
        mark(X, fast=-0.0),
        mark(X, fast=(1, 2)),
        mark(X, fast=((1,), 2)),
        mark(X, slow=True),
    ]
    monkeypatch.setattr(module, "__version__", "9.9")
    assert len({*marks, mark(X)}) == len(marks) + 1


def test_order_of_options_does_not_count() -> None:
    assert mark(X, a=1, b=2) == mark(X, b=2, a=1)


def test_names_of_graphs_origins_and_bound_arrays_do_not_count() -> None:
    plain = Graph.of(X @ W)
    told = replace(
        plain,
        name="other",
        origins={W: (Origin("module", "head"),)},
        params={"w": np.ones((6, 6), np.float32)},
    )
    assert mark(plain) == mark(told)


def test_option_that_cannot_be_told_is_refused() -> None:
    with pytest.raises(OptionError, match="the option fast is a object") as caught:
        mark(X, fast=object())
    assert caught.value.hint


def test_equal_graphs_built_apart_are_equal() -> None:
    again = leaf.input("x", f32[4, 6]) @ leaf.param("w", f32[6, 6])
    assert mark(Graph.of(again)) == mark(Graph.of(X @ W))


_SCRIPT = """
import numpy as np
from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.library.linear import linear
from dovetail.plan.fingerprint import fingerprint
x = leaf.input("x", f32["s", 4])
w = leaf.constant(np.arange(16.0).reshape(4, 4), f32)
graph = Graph.of({"y": linear(x, w, act="gelu"), "z": ops.flip(x, axes=(0,))})
print(fingerprint(graph, target="cpu", alignment=64, options={"tiles": (8, 12), "fast": True}))
"""


@pytest.mark.heavy
def test_equal_in_every_process() -> None:
    """Hashes of strings differ from process to process; fingerprints do not."""
    found = {
        subprocess.run(
            [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(found) == 1 and len(found.pop().strip()) == 64


def test_content_is_the_same_on_a_machine_of_the_other_byte_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for numbers in (np.arange(3, dtype=np.float32), np.arange(30, dtype=np.float32)):
        here = content(Literal(numbers))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "byteorder", "big")
            swapped = Literal(numbers.byteswap())
            assert content(swapped) == here
