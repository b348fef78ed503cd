"""Primitives and fused ops on XLA as they are drawn, judged by the reference in float64: `make primitives`.

Every primitive of the claims is drawn in every dtype that they have, and with other attributes than its sample has;
every variant of every fused op with the arguments that its laws draw. Many draws are one program, which XLA compiles
in a fraction of the time.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, get_args, get_type_hints

import numpy as np

from dovetail import Graph, Value, evaluate, library, ops
from dovetail.declare.fused import FusedOp, Variant
from dovetail.derive import laws
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, f32
from dovetail.ir.graph import walk_into
from dovetail.ir.leaf import constant, input
from dovetail.ir.literal import Array
from dovetail.ir.rewrite import rebuild
from dovetail.ir.walk import walk
from dovetail.ops import tracing
from dovetail.ops.primitive import Primitive
from dovetail.plan.plan import make_plan
from dovetail.runtime.compile import compilation, make_request
from dovetail.targets.xla.claims import CLAIMS
from dovetail.testing import lifted
from tests.targets.cuda.test_every_primitive import given, sample
from tests.tolerances import assert_close

TOGETHER = 64
"""Draws of one program."""
SCALE = 4.0
"""A fused op rounds more often than a primitive."""
UNDRAWN = {"refusal": "it has no result: it stands for a branch that cannot be computed"}
"""Claimed primitives without a draw, and why."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Values and arrays for their inputs."""

    name: str
    graph: Graph
    feeds: Mapping[str, Array]
    scale: float = 1.0
    as_written: bool = False
    """Whether XLA is handed these values, and not what the passes make of them."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What was run: which primitives XLA was handed, and which draws are wrong, with the reason."""

    draws: int
    primitives: frozenset[str]
    wrong: tuple[str, ...]


@cache
def _more_samples() -> Mapping[str, Value]:
    """Of primitives with bodies, and of those that the samples for GPUs leave out."""
    m, x, start = input("m", f32[3, 4]), input("x", f32[()]), input("start", f32[4])
    both = ops.complex_(m, input("n", f32[3, 4]))
    return {
        "if": tracing.cond(ops.greater(x, 0.0), lambda a: (a * 2.0,), lambda a: (a - 1.0,), m)[0],
        "while": tracing.while_loop(
            lambda total, step: ops.less(total, 9.0), lambda total, step: (total + ops.abs_(step) + 1.0,), [x], [x]
        )[0][0],
        "scan": tracing.scan(lambda carry, row: (carry * 0.5 + row, carry), [start], [m]).outputs[0],
        "dot": ops.dot(m, input("n", f32[3, 4]), left=(-1,), right=(-1,)),
        "sized": ops.exp(ops.sized(m, axis=-1, size=4)),
        "complex": ops.real(both * both),
        "real": ops.real(both),
        "imag": ops.imag(both),
    }


def _sample(op: Primitive) -> Value:
    more = _more_samples()
    return more[op.name] if op.name in more else sample(op)


def claimed() -> list[Primitive]:
    """The primitives that XLA runs, those apart whose samples a condition of the claims refuses."""
    drawn = [op for op in ops.ALL if op.name in CLAIMS.native and op.name not in UNDRAWN]
    return [op for op in drawn if all(CLAIMS.refusal(v) is None for v in walk([_sample(op)]) if v.op is op)]


def of_primitives(which: Iterable[Primitive], most: int | None = None) -> Iterator[Draw]:
    """Draws of each primitive, or as many of them: its sample first, then others, in an order of its own."""
    for op in which:
        first, *others = _of_primitive(op)
        yield first
        yield from others if most is None else Random(op.name).sample(others, min(most - 1, len(others)))


def _of_primitive(op: Primitive) -> Iterator[Draw]:
    """The sample, other dtypes, other attributes."""
    first = _sample(op)
    yield from _drawn(op.name, lambda first=first: first)
    own = next((v.dtype for v in walk([first]) if v.op is leaf.INPUT), None)
    for dtype in CLAIMS.dtypes:
        if own is not None and dtype is not own:
            yield from _drawn(f"{op.name} {dtype.name}", lambda d=dtype, f=first, o=own: _retyped(f, o, d))
    for name, other in _attributes(op, first):
        yield from _drawn(f"{op.name} {name}={other}", lambda o=op, f=first, n=name, a=other: _with(o, f, n, a))


def _drawn(name: str, made: Callable[[], Value]) -> Iterator[Draw]:
    """A draw, or none where a type rule refuses it."""
    try:
        graph = Graph.of({"y": made()})
    except TypeRuleError:
        return
    if all(CLAIMS.refusal(v) is None for v in graph.values if isinstance(v.op, Primitive)):
        types = {str(v.attrs["name"]): v.dtype.numpy for v in graph.inputs}
        yield Draw(
            name, graph, {name: array.astype(types[name]) for name, array in given(graph).items()}, as_written=True
        )


def _retyped(value: Value, own: DType, dtype: DType) -> Value:
    """The value with all inputs and constants of a dtype in another one."""

    def step(one: Value, operands: tuple[Value, ...]) -> Value | None:
        if one.op is leaf.INPUT and one.dtype is own:
            return input(str(one.attrs["name"]), dtype[one.shape])
        if one.op is leaf.CONST and one.dtype is own:
            return constant(np.asarray(one.attrs["value"].array).astype(dtype.numpy))
        return None

    return rebuild(Graph.of({"y": value}), step, into_subgraphs=False).outputs["y"]


def _attributes(op: Primitive, first: Value) -> Iterator[tuple[str, Any]]:
    """Other attributes, one at a time: every choice, every dtype, the other truth, another axis."""
    (here,) = [v for v in walk([first]) if v.op is op][:1]
    hints = get_type_hints(op.meaning) if op.kinds else {}
    for name, kind in op.kinds.items():
        others: Sequence[Any] = {
            "bool": (True, False),
            "choice": get_args(hints[name]),
            "dtype": CLAIMS.dtypes,
            "axis": (-1, -2),
            "axes": ((-1,), (-2,), (-2, -1), ()),
        }.get(kind.name, ())
        yield from ((name, other) for other in others if other != here.attrs[name])


def _with(op: Primitive, first: Value, name: str, other: Any) -> Value:
    def step(one: Value, operands: tuple[Value, ...]) -> Value | None:
        return op(*operands, **{**one.attrs, name: other}) if one.op is op else None

    return rebuild(Graph.of({"y": first}), step, into_subgraphs=False).outputs["y"]


def of_laws(which: Iterable[tuple[FusedOp[...], Variant]], seed: int = 1) -> Iterator[Draw]:
    """What the laws of fused ops draw, as each variant spells it."""
    for op, variant in which:
        chosen = laws.fitting(op, variant, seed)
        graph = laws.graph_of(laws.spelled(op, variant)(**chosen), chosen)
        yield Draw(f"{op.name}[{variant.label}]", graph, laws.feeds_of(graph, seed), SCALE)


def every_variant() -> list[tuple[FusedOp[...], Variant]]:
    return [(op, variant) for op in library.ALL for variant in op.variants]


def judged(draws: Iterable[Draw]) -> Judged:
    """Run draws on XLA, many in one program; those of a program that fails one by one."""
    listed, primitives, wrong = list(draws), set[str](), list[str]()
    for start in range(0, len(listed), TOGETHER):
        some = listed[start : start + TOGETHER]
        try:
            found, seen = _computed(some)
        except Exception:  # whatever it is, one of them alone says whose it is
            for one in some:
                try:
                    found, seen = _computed([one])
                except Exception as error:
                    wrong.append(f"{one.name}: {type(error).__name__}: {error}")
                else:
                    primitives |= seen
                    wrong += _differing([one], found)
        else:
            primitives |= seen
            wrong += _differing(some, found)
    return Judged(len(listed), frozenset(primitives), tuple(wrong))


def _computed(draws: Sequence[Draw]) -> tuple[Mapping[str, Array], set[str]]:
    """The results of draws as one program, and the primitives that XLA was handed."""
    from dovetail.targets.xla.run import XlaGraph

    values: dict[str, Value] = {}
    feeds: dict[str, Array] = {}
    for number, draw in enumerate(draws):
        renamed = rebuild(draw.graph, lambda one, _, n=number: _numbered(one, n))
        values |= {f"{number}.{name}": value for name, value in renamed.outputs.items()}
        feeds |= {f"{number}.{name}": array for name, array in draw.feeds.items()}
    graph = Graph.of(values)
    written = all(draw.as_written for draw in draws)
    plan = make_plan(graph, target="xla") if written else compilation(graph, make_request(target="xla")).plan
    read = {str(v.attrs["name"]) for v in plan.graph.inputs}
    found = XlaGraph(plan, None).bind({}).run({name: array for name, array in feeds.items() if name in read})
    return found, {v.op.name for v in walk_into(plan.graph.outputs.values()) if isinstance(v.op, Primitive)}


def _numbered(one: Value, number: int) -> Value | None:
    return input(f"{number}.{one.attrs['name']}", one.tensor) if one.op is leaf.INPUT else None


def _differing(draws: Sequence[Draw], found: Mapping[str, Array]) -> Iterator[str]:
    for number, draw in enumerate(draws):
        with np.errstate(all="ignore"):
            wanted = lifted(draw.graph, draw.feeds)
        for name, value in draw.graph.outputs.items():
            try:
                assert_close(found[f"{number}.{name}"], wanted[name], value.dtype, scale=draw.scale)
            except AssertionError as error:
                if not _as_near_as_numpy(draw, name, found[f"{number}.{name}"], wanted[name]):
                    yield f"{draw.name}: {error}"


def _as_near_as_numpy(draw: Draw, name: str, found: Array, wanted: Array) -> bool:
    """Whether float64 is as far from NumPy in the dtypes of the draw: then the draw itself magnifies roundings."""
    if found.dtype.kind != "f" or found.shape != wanted.shape:
        return False
    with np.errstate(all="ignore"):
        numpy = np.abs(evaluate(draw.graph, draw.feeds)[name] - wanted).max()
        return bool(np.abs(found - wanted).max() <= 2 * numpy)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make primitives", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the arguments of fused ops")
    said = parser.parse_args()
    which = claimed()
    alone, fused = judged(of_primitives(which)), judged(of_laws(every_variant(), said.seed))
    for line in (*alone.wrong, *fused.wrong):
        print(f"wrong: {line}")
    missing = [op.name for op in which if op.name not in alone.primitives]
    refused = [op.name for op in ops.ALL if op not in which and op.name not in UNDRAWN]
    print(f"{alone.draws} draws of {len(which)} primitives: {len(alone.wrong)} wrong; not handed to XLA: {missing}")
    print(f"{fused.draws} draws of {len(library.ALL)} fused ops: {len(fused.wrong)} wrong")
    print(f"refused by a condition: {', '.join(refused)}; not drawn: {', '.join(UNDRAWN)}")
    return int(bool(alone.wrong or fused.wrong or missing))


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
