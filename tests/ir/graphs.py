"""Graphs and ops that several tests of this room share, and what it means that two graphs are identical."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f32, i64
from dovetail.ir.fact import Constraint, Facts
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.origin import Origin
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Op, Value, make
from dovetail.ops.region import region


class Anything(Op):
    """An op that takes every operand and attribute."""

    name = "anything"

    def infer(self, facts: Facts, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Type:
        return TensorType(f32, ())


anything = Anything()
VOCABULARY = (*ops.ALL, region, anything)


def assert_identical(found: Graph, expected: Graph) -> None:
    assert found.name == expected.name
    assert list(found.outputs) == list(expected.outputs)
    for name, value in expected.outputs.items():
        assert found.outputs[name] is value, name
    assert found.inputs == expected.inputs
    assert found.assumed == expected.assumed
    assert dict(found.origins) == dict(expected.origins)


def nested() -> Graph:
    """Branches inside a loop, symbols, tuples, origins inside and outside."""
    s = symbol("s")
    row = TensorType(f32, (s,))
    flag = leaf.input("flag", TensorType(ops.less(leaf.argument(0, row), 0.0).dtype, ()))
    x, unused = leaf.input("x", row), leaf.input("unused", TensorType(i64, (3, s)))
    inner_then = Subgraph((row,), (ops.relu(leaf.argument(0, row)),))
    inner_else = Subgraph((row,), (leaf.argument(0, row),))
    given, chosen = leaf.argument(0, row), leaf.argument(1, flag.tensor)
    branch = ops.if_(chosen, given, then=inner_then, otherwise=inner_else)
    outer = Subgraph((row, flag.tensor), (branch[0] * 2.0, branch[0]))
    same = Subgraph((row, flag.tensor), (given, given))
    both = ops.if_(flag, x, flag, then=outer, otherwise=same)
    origins = {
        x: (Origin("source", "model.py:3"),),
        both: (Origin("module", "layers.0"), Origin("onnx", 'node "a"\n')),
        branch: (Origin("module", "layers.0.branch"),),
        given: (Origin("text", "argument"),),
        inner_then.results[0]: (Origin("module", "layers.0.branch.then"),),
    }
    assumed = (
        Constraint(s, "multiple_of", symbol("h"), "heads: a whole number"),
        Constraint(2 * s + 1, "at_least", s // symbol("h"), 'quotes " and \\'),
    )
    return Graph("nested", (flag, x, unused), {"y": both[0], "z": both[1], "x": x}, origins, assumed)


def every_attribute() -> dict[str, Any]:
    """One attribute of each kind, with the numbers that == confuses."""
    n = symbol("n")
    body = Subgraph((TensorType(f32, (n,)),), (leaf.argument(0, TensorType(f32, (n,))),))
    return {
        "none": None,
        "yes": True,
        "one": 1,
        "one_float": 1.0,
        "minus_zero": -0.0,
        "tiny": 5e-324,
        "nan": float("nan"),
        "infinite": (float("inf"), float("-inf")),
        "large": -(2**100),
        "text": 'a "quoted" \\ line\n\x00\u2028\ud800 ünï 🙂',
        "dtype": f32,
        "size": 2 * n + n // 3,
        "type": TensorType(i64, (4, n)),
        "empty": (),
        "single": (3,),
        "deep": ((1, (True, (None,))), "x", n),
        "array": leaf.constant(np.arange(40, dtype=np.int64)).attrs["value"],
        "body": body,
        "bodies": (body, body),
        "not a word": 0,
    }


def kitchen_sink() -> Value:
    return make(anything, (leaf.input("x", f32[4]),), every_attribute())
