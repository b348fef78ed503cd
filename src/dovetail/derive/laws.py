"""The laws: what must hold of every declared op, derived from its declaration alone.

Each law takes an op, a seed and what it needs from other rooms, and raises `LawError` when it does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

from dovetail.declare.fused import FusedOp, Result, Variant
from dovetail.declare.guard import Guard
from dovetail.derive.arguments import arguments, in_f16, inputs_of, strayed
from dovetail.derive.fuse import Fused, fuse
from dovetail.derive.unfuse import unfuse
from dovetail.errors import DovetailError, GraphError
from dovetail.ir import leaf
from dovetail.ir.dtype import f16
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.rewrite import rebuild
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops.elementwise import cast, sinh
from dovetail.ops.movement import flip

Evaluate = Callable[[Graph, Mapping[str, Array]], Mapping[str, Array]]
"""Runs a graph in float64: the judge."""
Arguments = Mapping[str, Any]
"""Arguments of an op that `fitting` gave: laws that share them draw once, which takes most of their time."""
Canonical = Callable[[Graph], Graph]
"""Brings a graph to its normal form."""

_TRIES = 400
_MAGNITUDES = 12
"""How many times a law looks for numbers that overflow."""
_CALLS = 8
"""How many refusals a law looks at for one that is named, or that a remedy is for."""
_F16_SCALES = (1e-3, 1.0, 30.0, 300.0, 2e4)
_F16_MOST = float(np.finfo(np.float16).max)


class LawError(GraphError):
    """A law that a declared op breaks."""


def graph_of(results: Result, chosen: Mapping[str, Any]) -> Graph:
    """Return the results of a body as a graph over its arguments."""
    listed = results if isinstance(results, tuple) else (results,)
    return Graph.of({f"y{i}": v for i, v in enumerate(listed)}, inputs=inputs_of(chosen))


def feeds_of(graph: Graph, seed: int) -> dict[str, Array]:
    """Numbers for the inputs of a graph."""
    rng = np.random.default_rng(seed)
    return {str(v.attrs["name"]): _numbers(rng, v.tensor) for v in graph.inputs}


def _numbers(rng: np.random.Generator, type: TensorType) -> Array:
    shape = tuple(s for s in type.shape if isinstance(s, int))
    if type.dtype.kind == "bool":
        # One true element a row keeps masked rows from being empty, where spellings may differ by design.
        mask = rng.random(shape) < 0.7
        if mask.ndim:
            mask[..., 0] = True
        return mask
    if type.dtype.is_integer:
        return rng.integers(0, 2, shape).astype(type.dtype.numpy)
    return rng.normal(size=shape).astype(type.dtype.numpy)


def fitting(op: FusedOp[...], variant: Variant, seed: int) -> dict[str, Any]:
    """Arguments that the declaration promises to take: all guards hold, the body and this spelling type-check."""
    random = Random(seed)
    for _ in range(_TRIES):
        chosen = arguments(op, variant, random)
        try:
            op(**chosen)
            spelled(op, variant)(**chosen)
        except DovetailError:
            continue
        if all(g.check({**chosen, "result": op(**chosen)}) for g in op.guards):
            return chosen
    raise LawError(f"{op.name} ({variant.label}): no arguments fit", hint="its shapes line and its guards disagree")


def spelled(op: FusedOp[...], variant: Variant) -> Callable[..., Result]:
    """Return the function that a variant was traced from."""
    return next((s for s in op.spellings if s.__name__ == variant.spelling), op.body)


def check_meaning(
    op: FusedOp[...],
    variant: Variant,
    seed: int,
    evaluate: Evaluate,
    chosen: Arguments | None = None,
) -> None:
    """Check that the fused value computes what this spelling computes."""
    chosen = chosen or fitting(op, variant, seed)
    plain = graph_of(spelled(op, variant)(**chosen), chosen)
    feeds = feeds_of(plain, seed)
    expected, got = evaluate(plain, feeds), evaluate(_fused_graph(op, chosen), feeds)
    for name in expected:
        if not np.allclose(got[name], expected[name], rtol=1e-6, atol=1e-6, equal_nan=True):
            raise LawError(f"{op.name} ({variant.label}): fused and spelled-out values differ at {name}")


def check_range(op: FusedOp[...], variant: Variant, seed: int, evaluate: Evaluate) -> None:
    """Check that what this spelling keeps in the range of f16 stays in it once fused; `evaluate` must not widen."""
    chosen = in_f16(fitting(op, variant, seed))
    try:
        born = _fused_graph(op, chosen)
    except DovetailError:
        return  # it has a type of its own
    if not all(g.check({**chosen, "result": op(**chosen)}) for g in op.guards):
        return
    plain = graph_of(spelled(op, variant)(**chosen), chosen)
    random = Random(seed)
    for attempt in range(_MAGNITUDES):
        feeds = {name: _magnified(array, random) for name, array in feeds_of(plain, seed + attempt).items()}
        expected, got = evaluate(plain, feeds), evaluate(born, feeds)
        for name in expected:
            if not np.isfinite(got[name])[np.isfinite(expected[name])].all():
                raise LawError(
                    f"{op.name} ({variant.label}): {name} overflows in f16 where the spelling does not",
                    hint="make what is computed first an option of the op, or declare a guard on the dtype",
                )


def _magnified(array: Array, random: Random) -> Array:
    """Numbers of one magnitude, from small ones to the largest of f16."""
    if array.dtype != f16.numpy:
        return array
    return np.clip(array.astype(np.float64) * random.choice(_F16_SCALES), -_F16_MOST, _F16_MOST).astype(f16.numpy)


def check_recognition(
    op: FusedOp[...],
    variant: Variant,
    seed: int,
    canonical: Canonical,
    parts: Sequence[FusedOp[...]],
    chosen: Arguments | None = None,
) -> None:
    """Check that this spelling fuses to the one value that the declaration builds."""
    chosen = chosen or fitting(op, variant, seed)
    plain = canonical(graph_of(spelled(op, variant)(**chosen), chosen))
    fused = _fuse_freely(plain, op, parts)
    expected = canonical(_fused_graph(op, chosen))
    if any(fused.graph.outputs[n] is not expected.outputs[n] for n in expected.outputs):
        others = [str(m) for m in fused.missed] or [str(v.op) for v in fused.graph.values]
        raise LawError(f"{op.name} ({variant.label}) does not fuse from its own spelling: {others}")


def check_round_trip(
    op: FusedOp[...], variant: Variant, seed: int, canonical: Canonical, chosen: Arguments | None = None
) -> None:
    """Expanding and fusing undo each other, to the very same values."""
    chosen = chosen or fitting(op, variant, seed)
    born = canonical(_fused_graph(op, chosen))
    spelled_out = canonical(unfuse(born, keep=lambda v: v.op is not op))
    fused = _fuse_freely(spelled_out, op, ())
    again = canonical(unfuse(fused.graph, keep=lambda v: v.op is not op))
    for name in born.outputs:
        if fused.graph.outputs[name] is not born.outputs[name]:
            raise LawError(f"{op.name} ({variant.label}): fuse(unfuse(f)) is not f: {[str(m) for m in fused.missed]}")
        if again.outputs[name] is not spelled_out.outputs[name]:
            raise LawError(f"{op.name} ({variant.label}): unfuse(fuse(g)) is not g")


def check_operand_order(
    op: FusedOp[...], variant: Variant, seed: int, canonical: Canonical, chosen: Arguments | None = None
) -> None:
    """Check that the order of the operands of commutative ops changes nothing."""
    chosen = chosen or fitting(op, variant, seed)
    plain = canonical(graph_of(spelled(op, variant)(**chosen), chosen))
    there, back = _fuse_freely(plain, op, ()), _fuse_freely(canonical(mirrored(plain)), op, ())
    if [v.op for v in there.graph.outputs.values()] != [v.op for v in back.graph.outputs.values()]:
        raise LawError(f"{op.name} ({variant.label}): operand order decides whether it fuses")


def mirrored(graph: Graph) -> Graph:
    """Return the graph with the two operands of every commutative op swapped."""

    def swap(value: Value, operands: tuple[Value, ...]) -> Value | None:
        if value.op.commutative and len(operands) == 2:
            return value.with_operands((operands[1], operands[0]))
        return None

    return rebuild(graph, swap)


def check_inner_outputs(
    op: FusedOp[...], variant: Variant, seed: int, evaluate: Evaluate, canonical: Canonical
) -> None:
    """Check that any inner value may be an output as well, and keeps its own value."""
    chosen = fitting(op, variant, seed)
    plain = canonical(graph_of(spelled(op, variant)(**chosen), chosen))
    feeds = feeds_of(plain, seed)
    inner = [v for v in plain.values if v.operands and isinstance(v.type, TensorType)]
    for value in inner:
        both = Graph.of({**plain.outputs, "inner": value}, inputs=plain.inputs)
        expected, got = evaluate(both, feeds), evaluate(fuse(both, [op]).graph, feeds)
        for name in expected:
            if not np.allclose(got[name], expected[name], rtol=1e-6, atol=1e-6, equal_nan=True):
                raise LawError(f"{op.name} ({variant.label}): {name} changes when {value!r} is an output")


def count_reported_losses(
    op: FusedOp[...], variant: Variant, seed: int, canonical: Canonical, parts: Sequence[FusedOp[...]]
) -> int:
    """Count the fusions that an op between two of this spelling loses; a `LawError` says which loss is not reported.

    A loss is reported as a miss of the op or of one of its parts. It is a law of the library: an op of two ops has too
    little in common with another number or function to differ from chance, so that `check_op` leaves it out.
    """
    chosen = fitting(op, variant, seed)
    plain = canonical(graph_of(spelled(op, variant)(**chosen), chosen))
    ops = [*parts, *([] if op in parts else [op])]
    names = {one.name for one in ops}
    whole = fuse(plain, ops, always=True)
    swallowed = {v for fusion in whole.applied for v in fusion.covers}
    lost = 0
    for reader in plain.values:
        for producer in dict.fromkeys(reader.operands):
            if producer.op in leaf.LEAVES or not {producer, reader} <= swallowed:
                continue
            for what, put in _INTERPOSED.items():
                graph = _interposed(plain, producer, reader, put)
                fused = None if graph is None else fuse(canonical(graph), ops, always=True, near=True)
                if fused is None or _count(op, fused) >= _count(op, whole):
                    continue
                lost += 1
                if names.isdisjoint([m.rule for m in fused.missed]):
                    loss = f"{what} between {producer.op.name} and {reader.op.name} loses it, and nothing tells"
                    raise LawError(f"{op.name} ({variant.label}): {loss}", hint="look for it in derive/near.py")
    return lost


def _count(op: FusedOp[...], fused: Fused) -> int:
    return sum(fusion.rule == op.name for fusion in fused.applied)


def _interposed(graph: Graph, producer: Value, reader: Value, put: Callable[[Value], Value]) -> Graph | None:
    """Return the graph where an op is put between one value and its reader; None where the types do not allow it."""

    def through(value: Value, operands: tuple[Value, ...]) -> Value | None:
        if value is not reader:
            return None
        return value.with_operands(
            tuple([put(new) if old is producer else new for old, new in zip(value.operands, operands, strict=True)])
        )

    try:
        return rebuild(graph, through)
    except DovetailError:
        return None


_INTERPOSED: Mapping[str, Callable[[Value], Value]] = {
    "casts": lambda v: cast(cast(v, dtype=f16), dtype=v.dtype) if v.dtype.is_float else cast(v, dtype=v.dtype),
    "another order": lambda v: flip(v, axes=(-1,)) if v.rank else v,
    "a scale": lambda v: v * 0.75 if v.dtype.is_float else v,
    "another function": lambda v: sinh(v) if v.dtype.is_float else v,
}


def counterexample(op: FusedOp[...], guard: Guard, seed: int = 0) -> dict[str, Any]:
    """Arguments that this guard alone refuses. A guard that nothing can break is dead."""
    random = Random(seed)
    bases: dict[int, dict[str, Any]] = {}
    for attempt in range(_TRIES * 20):
        index = attempt % len(op.variants)
        if index not in bases or random.random() < 0.05:
            bases[index] = _plausible(op, op.variants[index], random)
        chosen = strayed(op, bases[index], random, guard.asks)
        try:
            result = op(**chosen)
            refused = [g for g in op.guards if not g.check({**chosen, "result": result})]
        except (DovetailError, IndexError):
            continue
        if refused == [guard]:
            return chosen
    raise LawError(
        f"{op.name}.{guard.name} never refuses anything on its own",
        hint="it can be left out, or its shapes line is too tame",
    )


def _plausible(op: FusedOp[...], variant: Variant, random: Random) -> dict[str, Any]:
    """Arguments that the body takes, whatever the guards say."""
    for _ in range(_TRIES):
        chosen = arguments(op, variant, random)
        try:
            op(**chosen)
        except DovetailError:
            continue
        return chosen
    raise LawError(f"{op.name} ({variant.label}): its body takes no arguments", hint="correct its shapes line")


def check_guard(op: FusedOp[...], guard: Guard, canonical: Canonical) -> None:
    """Check that the guard refuses something that no other refuses, and that the report names it or less of it is
    fused.

    A graph may be read otherwise than it was called, what is added as a bias or as a residual: then the guard that
    refused that reading is named, and another call is looked at.
    """
    chosen: dict[str, Any] = {}
    misses: list[str] = []
    for seed in range(_CALLS):
        chosen = counterexample(op, guard, seed)
        plain = canonical(graph_of(op.body(**chosen), chosen))
        fused = _fuse_freely(plain, op, ())
        if any(a.rule == op.name and a.value is not op(**chosen) for a in fused.applied):
            return
        if any(m.reason == guard.name for m in fused.missed):
            return
        misses = [str(m) for m in fused.missed]
        if all(m.rule != op.name for m in fused.missed):
            break
    raise LawError(f"{op.name}.{guard.name} refuses {chosen}, and the report says {misses}")


def check_remedy(op: FusedOp[...], guard: Guard) -> None:
    """Check that what a guard refuses is taken once its remedy is applied."""
    assert guard.remedy is not None
    for seed in range(_CALLS):
        chosen = counterexample(op, guard, seed)
        changes = guard.remedy.changes({**chosen, "result": op(**chosen)})
        if not changes:
            continue
        changed = {**chosen, **{name: _of_type(name, new) for name, new in changes.items()}}
        if not guard.check({**changed, "result": op(**changed)}):
            raise LawError(f"{op.name}.{guard.name} refuses {chosen}, and {changed} all the same")
        return
    raise LawError(f"{op.name}.{guard.name}: its remedy {guard.remedy.name} never helps", hint="leave it out")


def _of_type(name: str, new: Any) -> Any:
    return leaf.input(name, new) if isinstance(new, TensorType) else new


def _fused_graph(op: FusedOp[...], chosen: Mapping[str, Any]) -> Graph:
    value = op(**chosen)
    if isinstance(value.type, TensorType):
        return graph_of(value, chosen)
    return graph_of(tuple(leaf.item(value, i) for i in range(len(value.type.items))), chosen)


def _fuse_freely(graph: Graph, op: FusedOp[...], parts: Sequence[FusedOp[...]]) -> Fused:
    """Fuse with the op (and what it is made of) whatever it costs: laws are about matching."""
    return fuse(graph, [*parts, op], always=True)
