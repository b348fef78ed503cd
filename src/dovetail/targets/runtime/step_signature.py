"""Steps that are alike: a kernel that was written for one is that of the other, pointed elsewhere."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.kernels.spec import Form, Job, Packed, Places, Status
from dovetail.plan.plan import Step

Point: TypeAlias = Value | Packed | Status


def look_of(step: Step, places: Places) -> Hashable:
    """All that a kernel is written by: the op, types, numbers that are known, and where each tensor lies."""
    value = step.value
    roots: dict[Value, int] = {}
    laid = tuple([_lie(v, places, roots) for v in value.operands])
    over = None if step.over is None else roots.get(places(step.over).root, -1)
    return value.op, value.attrs_key, value.type, laid, over


def _lie(value: Value, places: Places, roots: dict[Value, int]) -> Hashable:
    at = places(value)
    root = at.root
    seen: list[Hashable] = []
    while value is not root and value.operands:
        seen.append((value.op, value.attrs_key, value.type))
        value = value.operands[0]
    # A constant is written into the kernel; of what others hold, only whose it is counts.
    held = root if root.op is leaf.CONST else root.op if not root.operands else None
    number = roots.setdefault(root, len(roots))
    return tuple(seen), value.type, root.type, at.offset, at.strides, held, root in places.bound, number


def carried(job: Job, was: Step, now: Step) -> Job | None:
    """The job of a step for one that is alike; None where it points to what neither reads nor makes."""
    move: dict[Value, Value] = {}
    for old, new in zip(_tensors(was), _tensors(now), strict=True):
        if move.setdefault(old, new) is not new:
            return None
    points = _moved(job.points, move)
    forms = [_moved(form.points, move) for form in job.forms]
    if points is None:
        return None
    told = [replace(form, points=moved) for form, moved in zip(job.forms, forms, strict=True) if moved is not None]
    return replace(job, points=points, forms=tuple[Form, ...](told)) if len(told) == len(forms) else None


def _tensors(step: Step) -> tuple[Value, ...]:
    return step.value, *step.results, *step.operands


def _moved(points: Mapping[str, Point], move: Mapping[Value, Value]) -> dict[str, Point] | None:
    found: dict[str, Point] = {}
    for name, point in points.items():
        if isinstance(point, Status):
            found[name] = point
            continue
        packed = isinstance(point, Packed)
        known = _all([point.value, *point.beside] if packed else [point], move)
        if known is None:
            return None
        found[name] = replace(point, value=known[0], beside=tuple(known[1:])) if packed else known[0]
    return found


def _all(values: Sequence[Value], move: Mapping[Value, Value]) -> list[Value] | None:
    return [move[v] for v in values] if all([v in move for v in values]) else None


__all__ = ["carried", "look_of"]
