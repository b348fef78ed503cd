"""What if: the graph with the change that a missed fusion needs.

A guard's own remedy is declared with it. Remedies for what can happen to any op are here: an inner value that others
read, and a pattern that fits but for one op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from inspect import Parameter
from typing import Any

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.cost import view_base
from dovetail.declare.fused import FusedOp, Result
from dovetail.declare.remedy import Change
from dovetail.derive.fuse import Fused
from dovetail.derive.missed import BETWEEN, NEAR, PRIVATE, Missed
from dovetail.derive.unfuse import unfuse
from dovetail.errors import GraphError
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph
from dovetail.ir.rewrite import Replacement, rebuild, replace_roots
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ops.build import expand_dims, squeeze_dims


class NoRemedyError(GraphError):
    """A miss that no change we know of would turn into a fusion."""


@dataclass(frozen=True, slots=True)
class Remedied:
    """A graph with a remedy applied. It need not compute what the graph as written computes."""

    graph: Graph
    words: str
    """What is assumed."""
    changes: tuple[str, ...]
    """What it changes, each kind of change once: `b: f32[1, 8] → f32[8]`."""
    fresh: tuple[Value, ...]
    """Inputs and parameters that the model's author would have to provide."""
    dropped: tuple[str, ...] = ()
    """Outputs that are left out."""
    kept: tuple[str, ...] = ()
    """Outputs that keep the work of what a new input stands for, so that no gain is made of leaving it out."""


def remedy_of(op: FusedOp[...], reason: str) -> str:
    """Return the remedy for a reason, in words; empty where there is none."""
    own = next((g.remedy for g in op.guards if g.name == reason), None)
    return own.words if own is not None else _GENERIC.get(reason, "")


_GENERIC = {
    PRIVATE: "nobody else reads the inner value",
    NEAR: "it is written as the rule has it",
    BETWEEN: "nothing stands in between",
}


def remedied(fused: Fused, op: FusedOp[...], misses: Sequence[Missed]) -> Remedied:
    """Return the graph that was fused, spelled out again, with all of these misses of one rule and reason remedied."""
    words = remedy_of(op, misses[0].reason)
    if not words:
        raise NoRemedyError(f"no automatic remedy for {misses[0].reason}", hint=misses[0].hint)
    before = next(r.before for r in fused.rounds if op in r.ops)
    fresh = _Fresh(before)
    if misses[0].reason == PRIVATE:
        changed, dropped, changes = _privatized(before, misses, fresh)
    else:
        dropped = ()
        changed, changes = _changed(before, op, misses, fresh)
    return _spelled(fused.rounds[0].before, changed, Remedied(changed, words, changes, (), dropped), fresh)


@dataclass
class _Fresh:
    """Values of other types in place of old ones: views and casts where that is enough, new leaves elsewhere."""

    graph: Graph
    leaves: dict[Value, None] = field(default_factory=dict[Value, None])
    replaced: list[Value] = field(default_factory=list[Value])
    """What new leaves stand for, where it is computed in a run."""

    def __post_init__(self) -> None:
        self.taken = {str(v.attrs["name"]) for v in (*self.graph.inputs, *self.graph.values) if v.op in _NAMED}
        self.late: set[Value] = set()
        for value in self.graph.values:
            if value.op in (leaf.INPUT, leaf.ARGUMENT) or any(v in self.late for v in value.operands):
                self.late.add(value)

    def of_type(self, value: Value, type: TensorType, called: str, *, late: bool) -> Value:
        """Return the value in another type; a leaf where its numbers do not tell those of the new one."""
        view = viewed(value, type)
        # Axes of size 1 in front of others say nothing in a broadcast, and the normal form has none.
        if view is not None and not (type.rank > value.rank and type.shape[0] == 1):
            return view
        if late:
            self.replaced.append(value)
        return self.leaf(type, str(value.attrs["name"]) if value.op in _NAMED else called, late=late)

    def leaf(self, type: TensorType, called: str, *, late: bool) -> Value:
        name = base = f"{called}_assumed"
        while name in self.taken:
            name = f"{base}_{len(self.taken)}"
        self.taken.add(name)
        # One number for each element of an axis is what models learn, whatever stood in its place.
        learnt = type.is_static and (not late or len(_long(type.shape)) < 2)
        leaf_ = leaf.param(name, type) if learnt else leaf.input(name, type)
        self.leaves[leaf_] = None
        return leaf_

    def is_late(self, value: Value) -> bool:
        """Return whether only a run knows it. A view that matching made counts as its source."""
        return value in self.late or any(v in self.late for v in value.operands) or not value.tensor.is_static


_NAMED = (leaf.INPUT, leaf.PARAM)


def viewed(value: Value, type: Type) -> Value | None:
    """Return the same numbers in another dtype or with other axes of size 1; None where that does not make the type."""
    if value.type == type:
        return value
    if not isinstance(type, TensorType) or _long(value.shape) != _long(type.shape):
        return None
    if value.shape != type.shape:
        ones = tuple(i - type.rank for i, size in enumerate(type.shape) if size == 1)
        value = expand_dims(squeeze_dims(value), ones)
    return value if value.dtype is type.dtype else ops.cast(value, dtype=type.dtype)


def _long(shape: Sequence[Size]) -> list[Size]:
    return [size for size in shape if size != 1]


def _changes(op: FusedOp[...], miss: Missed) -> Change:
    """Return what has to change of what a miss caught."""
    lacking = [p.name for p in op.signature.parameters if p.name not in miss.caught and p.default is Parameter.empty]
    if lacking:
        raise NoRemedyError(f"no automatic remedy: {', '.join(lacking)} of {op.name} not found", hint=miss.hint)
    guard = next((g for g in op.guards if g.name == miss.reason), None)
    if guard is None or guard.remedy is None:
        return {}
    changes = guard.remedy.changes({**miss.caught, "result": miss.root})
    if not changes:
        raise NoRemedyError("no automatic remedy for what was found here", hint=miss.hint)
    return {name: new for name, new in changes.items() if _shown(miss.caught[name]) != _shown(new)}


def _changed(graph: Graph, op: FusedOp[...], misses: Sequence[Missed], fresh: _Fresh) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph with each miss written out again, with other operands or options."""
    roots: dict[Value, Replacement] = {}
    descriptions: dict[str, None] = {}
    for miss in misses:
        changes = _changes(op, miss)
        descriptions.update(dict.fromkeys(_descriptions(miss, changes)))
        needs = tuple(v for v in miss.caught.values() if isinstance(v, Value))
        build = _Build(op, miss, changes, fresh)
        for index, result in enumerate(miss.results):
            roots[result] = Replacement(needs, build.result(index), miss.covers)
    return replace_roots(graph, roots), tuple(descriptions)


def _descriptions(miss: Missed, changes: Change) -> list[str]:
    return [f"{name}: {_shown(miss.caught[name])} → {_shown(new)}" for name, new in changes.items()]


def _shown(what: Any) -> str:
    return str(what.type) if isinstance(what, Value) else str(what)


@dataclass
class _Build:
    """Builds the results of one miss as its op is spelled there, once for all of them."""

    op: FusedOp[...]
    miss: Missed
    changes: Change
    fresh: _Fresh
    built: tuple[Value, ...] = ()

    def result(self, index: int) -> Callable[[Callable[[Value], Value]], Value]:
        def build(new: Callable[[Value], Value]) -> Value:
            self.built = self.built or self._all(new)
            expected = self.miss.results[index].type
            viewed_ = viewed(self.built[index], expected)
            if viewed_ is None:
                raise NoRemedyError(
                    f"no automatic remedy: it would be {self.built[index].type}, and what reads it takes {expected}",
                    hint=self.miss.hint,
                )
            return viewed_

        return build

    def _all(self, new: Callable[[Value], Value]) -> tuple[Value, ...]:
        names = {k: new(v) if isinstance(v, Value) else v for k, v in self.miss.caught.items()}
        for name, change in self.changes.items():
            old = self.miss.caught[name]
            if isinstance(change, TensorType):
                called = f"{self.op.name}.{name}"
                change = self.fresh.of_type(names[name], change, called, late=self.fresh.is_late(old))
            names[name] = change
        results = _spelling(self.op, self.miss)(**names)
        return results if isinstance(results, tuple) else (results,)


def _spelling(op: FusedOp[...], miss: Missed) -> Callable[..., Result]:
    """Return the spelling of the op that was matched: its body may be another one, as where it folds weights."""
    spelling = next((v.spelling for v in op.variants if v.label == miss.variant), "")
    return next((s for s in op.spellings if s.__name__ == spelling), op.body)


def _privatized(
    graph: Graph, misses: Sequence[Missed], fresh: _Fresh
) -> tuple[Graph, tuple[str, ...], tuple[str, ...]]:
    """Return the graph where the inner values have no other reader: outputs are dropped, other readers get an input."""
    inside: dict[Value, set[Value]] = {}
    for miss in misses:
        for value in miss.shared:
            inside.setdefault(value, set(miss.covers))
    dropped = tuple(name for name, value in graph.outputs.items() if value in inside)
    if len(dropped) == len(graph.outputs):
        raise NoRemedyError("no automatic remedy: no output would be left", hint=misses[0].hint)
    descriptions = dict.fromkeys([_describe_dropped(dropped)] if dropped else [])
    stand_ins: dict[Value, Value] = {}

    def detach(value: Value, operands: tuple[Value, ...]) -> Value | None:
        others = [v for v in value.operands if v in inside and value not in inside[v]]
        if not others:
            return None
        for old in others:
            if old not in stand_ins:
                if not isinstance(old.type, TensorType):
                    raise NoRemedyError("no automatic remedy for a value of several results", hint=misses[0].hint)
                stand_ins[old] = fresh.leaf(old.type, old.op.name, late=True)
                descriptions[f"others read an input in place of {old.op.name} {old.type}"] = None
        new = zip(value.operands, operands, strict=True)
        return value.with_operands(tuple(stand_ins[o] if o in others else n for o, n in new))

    outputs = {name: v for name, v in graph.outputs.items() if name not in dropped}
    donated = {name: source for name, source in graph.donated.items() if name in outputs}
    left = replace(graph, outputs=outputs, donated=donated)
    return rebuild(left, detach), dropped, tuple(descriptions)


def _describe_dropped(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"the output {names[0]} is dropped"
    return f"{len(names)} outputs are dropped: {', '.join(names[:3])}" + (", …" if len(names) > 3 else "")


def _spelled(before: Graph, changed: Graph, remedied_: Remedied, fresh: _Fresh) -> Remedied:
    """Return the changed graph without fusions, and with all that it reads."""
    alive = set(changed.values)
    lost = dict.fromkeys(v for v in map(view_base, fresh.replaced) if v.operands and v not in alive)
    prefix = "kept_"
    while any(name.startswith(prefix) for name in changed.outputs):
        prefix = f"_{prefix}"
    kept = {f"{prefix}{index}": value for index, value in enumerate(lost)}
    whole = replace(changed, outputs={**changed.outputs, **kept})
    born = {v.op for v in before.values}
    spelled = unfuse(whole, keep=lambda v: not isinstance(v.op, FusedOp) or v.op in born)
    present = set(spelled.values)
    leaves = tuple(v for v in fresh.leaves if v in present)
    names = {str(v.attrs["name"]) for v in spelled.parameters}
    graph = replace(
        spelled.settled(),
        inputs=(*spelled.inputs, *(v for v in leaves if v.op is leaf.INPUT)),
        params={name: array for name, array in spelled.params.items() if name in names},
    )
    return replace(remedied_, graph=graph, fresh=leaves, kept=tuple(kept))


__all__ = ["NoRemedyError", "Remedied", "remedied", "remedy_of", "viewed"]
