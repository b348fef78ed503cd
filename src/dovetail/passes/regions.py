"""Elementwise regions: connected elementwise ops with one visible result become one kernel."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.derive.edit import Log
from dovetail.derive.fuse import Fused
from dovetail.derive.missed import Applied, Missed
from dovetail.ir import leaf
from dovetail.ir.dtype import DType
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.inline import outline
from dovetail.ir.rewrite import Replacement, replace_roots
from dovetail.ir.value import Value
from dovetail.ops.region import is_prologue, region

LIMIT = "target_limit"


@dataclass(frozen=True, slots=True)
class RegionLimits:
    """What a target's region kernel takes; None is no limit."""

    steps: int | None = None
    inputs: int | None = None
    apart: Collection[DType] = ()
    """Dtypes that region kernels do not compute with: a step that reads or gives one is a kernel of its own."""
    has_code: Callable[[Value], bool] | None = None
    """Whether compiled code has a step, which runs on the host alone if not; None where it has all of them."""

    def takes(self, value: Value) -> bool:
        """Whether a step may be in a region."""
        if self.has_code is not None and not self.has_code(value):
            return False
        return not self.apart or not any(v.dtype in self.apart for v in (value, *value.operands))

    def over(self, steps: int, inputs: int) -> str | None:
        """The limit that a region of this size exceeds, in words."""
        if self.steps is not None and steps > self.steps:
            return f"{self.steps} steps"
        if self.inputs is not None and inputs > self.inputs:
            return f"{self.inputs} inputs"
        return None


@dataclass(slots=True, eq=False)
class _Group:
    """A region while it grows from its root towards the inputs."""

    root: Value
    members: dict[Value, None]
    inputs: dict[Value, None]

    def inputs_with(self, value: Value) -> int:
        """How many inputs there are once a value is a member."""
        new = {v for v in value.operands if not _is_scalar(v) and v not in self.inputs}
        return len(self.inputs) - (value in self.inputs) + len(new)

    def take(self, value: Value) -> None:
        """Make a value a member."""
        self.members[value] = None
        self.inputs.pop(value, None)
        self.inputs.update((v, None) for v in value.operands if not _is_scalar(v))


def mark_regions(graph: Graph, limits: RegionLimits | None = None, log: Log | None = None) -> Fused:
    """Group elementwise values whose readers all stand in one region; over the limits a region is cut, not dropped.

    A short step on a tensor that is read again is part of every region that reads it.
    """
    limits = limits or RegionLimits()
    static = weight_only(graph)
    repeated = _repeated(graph)
    group_of: dict[Value, tuple[_Group, ...]] = {}
    groups: list[_Group] = []
    cut: dict[_Group, tuple[list[Value], str]] = {}
    whole: dict[_Group, _Group] = {}
    for value in reversed(graph.values):
        if not value.op.elementwise or value in static or not limits.takes(value):
            continue
        homes = _homes(value, graph, group_of)
        if len(homes) > 1 and value in repeated and all(_over(limits, h, value) is None for h in homes):
            for home in homes:
                home.take(value)
            group_of[value] = homes
            continue
        home = homes[0] if len(homes) == 1 else None
        limit = None if home is None else _over(limits, home, value)
        if home is not None and limit is None:
            home.take(value)
            group_of[value] = homes
            continue
        group = _Group(value, {value: None}, {v: None for v in value.operands if not _is_scalar(v)})
        if home is not None and limit is not None:
            first = whole[group] = whole.get(home, home)
            cut.setdefault(first, ([first.root], limit))[0].append(value)
        group_of[value] = (group,)
        groups.append(group)
    missed = [_cut(roots, limit) for roots, limit in cut.values()]
    return _build(graph, [g for g in groups if len(g.members) > 1], missed, log)


def weight_only(graph: Graph) -> set[Value]:
    """Values that depend on parameters and constants alone; they are computed once, when parameters are bound."""
    static: set[Value] = set()
    for value in graph.values:
        given = value.op is leaf.PARAM or value.op is leaf.CONST
        if given or (value.operands and all(v in static for v in value.operands)):
            static.add(value)
    return static


def _over(limits: RegionLimits, group: _Group, value: Value) -> str | None:
    """The limit that a region exceeds once a value is a member."""
    return limits.over(len(group.members) + 1, group.inputs_with(value))


def _homes(value: Value, graph: Graph, group_of: dict[Value, tuple[_Group, ...]]) -> tuple[_Group, ...]:
    """The regions that the readers stand in; none where one of them is in no region."""
    if graph.uses.is_output(value):
        return ()
    found: dict[_Group, None] = {}
    for reader in graph.uses.readers[value]:
        groups = group_of.get(reader)
        if groups is None:
            return ()
        found.update(dict.fromkeys(groups))
    return tuple(found)


_SHORT = (ops.add, ops.sub, ops.mul, ops.div, ops.neg, ops.cast, ops.relu, ops.greater, ops.less, ops.equal)
"""Steps that take less time than writing their result and reading it in two kernels."""


def _repeated(graph: Graph) -> set[Value]:
    """Short steps on one tensor that the backward pass reads again: a region that repeats one reads no more by it."""
    found: set[Value] = set()
    for value in graph.values:
        if value.op in _SHORT:
            tensors = [v for v in value.operands if not _is_scalar(v)]
            if len(tensors) == 1 and (tensors[0].op is ops.again or tensors[0] in found):
                found.add(value)
    return found


def _cut(roots: list[Value], limit: str) -> Missed:
    """A region of several kernels, by the values that they write, the last one first."""
    message = f"the target's region kernel takes at most {limit}: the region is cut into {len(roots)}"
    return Missed("region", "", roots[0], tuple(roots), LIMIT, message, "")


def _build(graph: Graph, groups: list[_Group], cut: list[Missed], log: Log | None) -> Fused:
    replacements: dict[Value, Replacement] = {}
    built: dict[Value, Value] = {}
    prologues: dict[Value, dict[Value, None]] = {}
    if log is not None:
        log.begin("roots")
    for group in groups:
        _absorb_views(graph, group, prologues)
        operands = tuple(_in_order(group))
        body = outline([group.root], operands)
        covers = tuple([*group.members, *prologues.get(group.root, ())])
        replacements[group.root] = Replacement(operands, BuildRegion(group.root, body, operands, built), covers)
        if log is not None:
            label, made = f"{len(group.members)} steps", region(body, operands)
            log.replace("region", label, "exact", (group.root,), (made,), operands, covers)
    new = replace_roots(graph, replacements)
    applied = [
        Applied("region", f"{len(g.members)} steps", g.root, replacements[g.root].covers, built[g.root])
        for g in groups
        if g.root in built
    ]
    return Fused(new, tuple(applied), tuple(m.follow(new.moved) for m in cut))


def _in_order(group: _Group) -> list[Value]:
    """The inputs in the order in which the steps read them, first step first."""
    met: dict[Value, None] = {}
    for member in reversed(group.members):
        met.update((v, None) for v in member.operands if v in group.inputs)
    met.update(group.inputs)
    return list(met)


def _absorb_views(graph: Graph, group: _Group, prologues: dict[Value, dict[Value, None]]) -> None:
    """Movement that only this region reads folds into its index arithmetic."""
    taken: dict[Value, None] = {}
    pending = list(group.inputs)
    while pending:
        value = pending.pop()
        if value not in group.inputs or not is_prologue(value) or graph.uses.is_output(value):
            continue
        if all(r in group.members or r in taken for r in graph.uses.readers[value]):
            del group.inputs[value]
            taken[value] = None
            for operand in value.operands:
                group.inputs[operand] = None
                pending.append(operand)
    if taken:
        prologues[group.root] = taken


def _is_scalar(value: Value) -> bool:
    """A rank-0 constant is written into the kernel and is no input."""
    return value.op is leaf.CONST and value.rank == 0


@dataclass(frozen=True, slots=True)
class BuildRegion:
    """Builds a region's value out of new operands."""

    root: Value
    body: Subgraph
    operands: tuple[Value, ...]
    built: dict[Value, Value]

    def __call__(self, new: Callable[[Value], Value]) -> Value:
        value = region(self.body, [new(v) for v in self.operands])
        self.built[self.root] = value
        return value
