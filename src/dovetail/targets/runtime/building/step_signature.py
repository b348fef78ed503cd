"""Steps with equal signatures: the kernel of one serves the other, with other bindings."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from dovetail import library, ops
from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.kernels.spec import Binding, Job, Packed, Status, TensorLocations
from dovetail.plan.alias import is_dense
from dovetail.plan.plan import Step

B = TypeVar("B", Value, Packed)


def step_signature(step: Step, locations: TensorLocations, *, sees_views: bool = True) -> Hashable:
    """Everything that decides the kernel of a step: op, attributes, types, constants, and where tensors are stored.

    Unless it `sees_views`, an operand that is all of another tensor in its order is as one that is no view.
    """
    value = step.value
    roots: dict[Value, int] = {}
    operands = tuple([_operand(v, locations, roots, sees_views) for v in value.operands])
    over = tuple([None if v is None else roots.get(locations(v).root, -1) for v in step.overs])
    results = tuple([(at.offset, at.strides) for at in map(locations, step.results)])
    return value.op, value.attrs_key, value.type, operands, results, over


def _operand(value: Value, locations: TensorLocations, roots: dict[Value, int], sees_views: bool) -> Hashable:
    at = locations(value)
    root = at.root
    views: list[Hashable] = []
    is_whole = at.offset == 0 and value.tensor.bytes == root.tensor.bytes and is_dense(value.tensor, at.strides)
    if is_whole and not sees_views and value is not root and root.operands:
        number = roots.setdefault(root, len(roots))
        return (), value.type, value.type, 0, at.strides, None, root in locations.bound, number
    while value is not root and value.operands:
        views.append((value.op, value.attrs_key, value.type))
        value = value.operands[0]
    # The kernel contains the numbers of a constant; of another leaf only its kind counts.
    held = root if root.op is leaf.CONST else root.op if not root.operands else None
    number = roots.setdefault(root, len(roots))
    return tuple(views), value.type, root.type, at.offset, at.strides, held, root in locations.bound, number


def rebound(job: Job, was: Step, now: Step) -> Job | None:
    """The job of a step for one with an equal signature; None where it binds what neither step reads nor makes."""
    move = _moves(was, now)
    if move is None:
        return None
    bindings = _moved(job.bindings, move)
    moved = [(variant, _moved(variant.bindings, move)) for variant in job.variants]
    if bindings is None:
        return None
    variants = tuple([replace(variant, bindings=new) for variant, new in moved if new is not None])
    return replace(job, bindings=bindings, variants=variants) if len(variants) == len(moved) else None


def stored_as(value: Value, *, any_format: bool = False) -> Hashable:
    """What a tensor is dequantised from: types of its parts and, unless it may be any, their formats; None where it is
    not."""
    if value.op is library.dequantise_blocks:
        return value.type if any_format else (value.attrs_key, value.operands[0].type)
    if value.op is ops.permute or value.op is ops.concat:
        parts = tuple([stored_as(v, any_format=any_format) for v in value.operands])
        return None if None in parts else (value.op, value.attrs_key, parts)
    return None


def moved_bindings(bindings: Mapping[str, B], was: Step, now: Step, *, any_format: bool) -> dict[str, B] | None:
    """The bindings of a step's kernel for a step with an equal signature, which may have blocks of another format; None
    as in `rebound`."""
    move = _moves(was, now, any_format=any_format)
    return None if move is None else cast("dict[str, B] | None", _moved(bindings, move))


def _moves(was: Step, now: Step, *, any_format: bool = False) -> dict[Value, Value] | None:
    """The tensors of one step by those of another; None where one would be two."""
    move: dict[Value, Value] = {}
    for old, new in zip(_tensors(was), _tensors(now), strict=True):
        for one, other in _with_sources(old, new, any_format):
            if move.setdefault(one, other) is not other:
                return None
    return move


def _with_sources(old: Value, new: Value, any_format: bool) -> list[tuple[Value, Value]]:
    """A tensor of one step and of another, and what both are dequantised from: kernels bind that in their place."""
    renewed = [(old, new)]
    before, after = (stored_as(v, any_format=any_format) for v in renewed[0])
    if before is not None and before == after:
        pairs = zip(old.operands, new.operands, strict=True)
        renewed += [
            pair
            for one, other in pairs
            for pair in (
                [(one, other)] if old.op is library.dequantise_blocks else _with_sources(one, other, any_format)
            )
        ]
    return renewed


def _tensors(step: Step) -> tuple[Value, ...]:
    return step.value, *step.results, *step.operands


def _moved(bindings: Mapping[str, Binding], move: Mapping[Value, Value]) -> dict[str, Binding] | None:
    moved: dict[str, Binding] = {}
    for name, binding in bindings.items():
        if isinstance(binding, Status):
            moved[name] = binding
            continue
        packed = isinstance(binding, Packed)
        known = _all([binding.value, *binding.beside] if packed else [binding], move)
        if known is None:
            return None
        moved[name] = replace(binding, value=known[0], beside=tuple(known[1:])) if packed else known[0]
    return moved


def _all(values: Sequence[Value], move: Mapping[Value, Value]) -> list[Value] | None:
    return [move[v] for v in values] if all([v in move for v in values]) else None


__all__ = ["moved_bindings", "rebound", "step_signature", "stored_as"]
