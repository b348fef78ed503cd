"""The history of a graph: every edit that the passes made, which can be made again one by one, and traced back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from dovetail.dataclass import dataclass
from dovetail.derive.edit import Edit, Sweep
from dovetail.ir import leaf
from dovetail.ir.graph import Graph, subgraphs
from dovetail.ir.rewrite import CyclicReplacementError, Replacement, rebuild, replace_roots
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.passes.canonical.engine import Canonicalizer
from dovetail.passes.canonical.rule import Rule


@dataclass(frozen=True, slots=True)
class Made:
    """An edit, and the pass that made it."""

    sweep: str
    edit: Edit


@dataclass(frozen=True, slots=True)
class Chain:
    """How a value of the final graph came to be: the values of the start that are in it, and the edits in order."""

    value: Value
    origins: tuple[Value, ...]
    links: tuple[Made, ...]


@dataclass(frozen=True)
class History:
    """A graph as it was given to the passes, and all edits in the order in which they were made."""

    start: Graph
    written: Graph
    """The same with its blocks spelled out: people are told of its nodes."""
    sweeps: tuple[Sweep, ...]

    @cached_property
    def edits(self) -> tuple[Made, ...]:
        return tuple(Made(sweep.title, edit) for sweep in self.sweeps for edit in sweep.edits)

    def replay(self, count: int | None = None) -> Graph:
        """The graph with the first `count` edits made, or all of them.

        Roots that only stand together (each reads what another makes) are replaced together.
        """
        graph = self.start.settled()
        left = len(self.edits) if count is None else count
        for sweep in self.sweeps:
            if left <= 0:
                break
            graph = _swept(graph, sweep, min(left, len(sweep.edits))).settled()
            left -= len(sweep.edits)
        return graph

    def chain(self, value: Value) -> Chain:
        """What led to a value of the final graph."""
        links: list[Made] = []
        here = {value: None}
        for stage in reversed(self._stages):
            edits = dict.fromkeys(edit for v in here for edit in stage.made.get(v, ()))
            links += [Made(stage.sweep.title, e) for e in sorted(edits, key=lambda e: -stage.place[e])]
            here = stage.back(here)
        return Chain(value, tuple(here), tuple(reversed(links)))

    def nodes(self, edit: Edit) -> tuple[Value, ...]:
        """The nodes as written that an edit was about, or that it became part of."""
        found = self._homes.get(edit)
        if found is None:
            return ()
        number, here = found
        first = self._first_sweep if number >= self._first_sweep else 0
        for stage in reversed(self._stages[first : number + 1]):
            here = stage.back(here)
        known = self._places if first or not self._first_sweep else {v: i for i, v in enumerate(self.start.values)}
        return tuple(sorted((v for v in here if v in known), key=lambda v: -known[v]))

    @cached_property
    def _homes(self) -> dict[Edit, tuple[int, dict[Value, None]]]:
        """For each edit, its sweep and the values that it made."""
        found: dict[Edit, tuple[int, dict[Value, None]]] = {}
        for number, stage in enumerate(self._stages):
            for value, edits in stage.made.items():
                for edit in edits:
                    for each in (edit, *edit.proof):
                        found.setdefault(each, (number, {}))[1][value] = None
        return found

    @cached_property
    def _places(self) -> dict[Value, int]:
        return {v: i for i, v in enumerate(self.written.values)}

    @cached_property
    def _first_sweep(self) -> int:
        """The sweep that was given the graph as written."""
        return sum(sweep.title == "lower_blocks" for sweep in self.sweeps)

    @cached_property
    def twins(self) -> dict[Value, Value]:
        """Values that came to be on the way, each with one of the start or as written that it equals up to rounding."""
        return {**(self._twins_of(self.start, 0) if self._first_sweep else {}), **self.written_twins}

    @cached_property
    def written_twins(self) -> dict[Value, Value]:
        """The same with values of the graph as written."""
        return self._twins_of(self.written, self._first_sweep)

    def _twins_of(self, graph: Graph, first: int) -> dict[Value, Value]:
        found: dict[Value, Value] = {v: v for v in graph.values}
        now = dict(found)
        for stage in self._stages[first:]:
            now = {old: stage.moved.get(v, v) for old, v in now.items() if v not in stage.swallowed}
            for old, v in now.items():
                if v.type == old.type:
                    found.setdefault(v, old)
        return found

    @cached_property
    def bodies(self) -> tuple[Made, ...]:
        """Branches and loops whose bodies were rewritten inside, each as one edit; they are no edits of their own."""
        found: list[Made] = []
        for stage in self._stages:
            for new, olds in stage.before.items():
                if subgraphs(new) and new not in stage.made:
                    changed = [v for v in olds if v.op is new.op and v.attrs is not new.attrs]
                    found += [
                        Made(stage.sweep.title, Edit(f"inside {v.op.name}", "", "reassociated", (v,), (new,)))
                        for v in (old.with_operands(new.operands) for old in changed)
                        if v is not new
                    ]
        return tuple(found)

    @cached_property
    def _stages(self) -> list[_Stage]:
        graph = self.start.settled()
        found: list[_Stage] = []
        for sweep in self.sweeps:
            engine = Canonicalizer(_looked_up(sweep.edits)) if sweep.manner == "rewrite" else None
            after = rebuild(graph, engine.step) if engine is not None else _rooted(graph, sweep.edits)
            found.append(_stage(graph, after, sweep, engine))
            graph = after.settled()
        return found


@dataclass(frozen=True, slots=True)
class _Stage:
    """One sweep, seen from what it left: which edits made each value, and what stood there before."""

    sweep: Sweep
    moved: Mapping[Value, Value]
    made: dict[Value, list[Edit]]
    before: dict[Value, list[Value]]
    swallowed: frozenset[Value]
    place: dict[Edit, int]
    """The edits, counted."""

    def back(self, values: Iterable[Value]) -> dict[Value, None]:
        """What stood in the place of values before."""
        return {old: None for v in values for old in self.before.get(v, (v,))}


def _stage(graph: Graph, after: Graph, sweep: Sweep, engine: Canonicalizer | None) -> _Stage:
    before: dict[Value, list[Value]] = {}
    for old in graph.values:
        before.setdefault(after.moved.get(old, old), []).append(old)
    fresh = {v for v in after.values if v not in before}
    made: dict[Value, list[Edit]] = {}
    for edit in sweep.edits:
        for old, new in zip(edit.before, edit.after, strict=True):
            now = after.moved.get(old, old) if engine is None else engine.known.get(new, new)
            for value in _with_fresh(now, fresh):
                made.setdefault(value, []).append(edit)
                if value is not now:
                    before.setdefault(value, []).extend(before.get(now, ()))
    return _Stage(sweep, after.moved, made, before, _swallowed(after, sweep), {e: i for i, e in enumerate(sweep.edits)})


def _swallowed(after: Graph, sweep: Sweep) -> frozenset[Value]:
    """Inner values that are part of what stands in place of their root, and equal nothing there."""
    found: set[Value] = set()
    for edit in sweep.edits:
        homes = {after.moved.get(v, v) for v in edit.before}
        found.update(v for v in edit.covers if v not in edit.before and after.moved.get(v, v) in homes)
    return frozenset(found)


def _with_fresh(value: Value, fresh: set[Value]) -> Iterator[Value]:
    """A value, and what was made together with it: nothing stood there before, or it is one of several results."""
    # Several results go apart at once: each is an item of what was packed.
    stack = list(value.operands) if value.op is leaf.PACK else [value]
    seen = set(stack)
    while stack:
        value = stack.pop()
        yield value
        for operand in value.operands:
            if operand not in seen and (operand in fresh or value.op is leaf.ITEM):
                seen.add(operand)
                stack.append(operand)


def _swept(graph: Graph, sweep: Sweep, count: int) -> Graph:
    if sweep.manner == "rewrite":
        return rebuild(graph, Canonicalizer(_looked_up(sweep.edits[:count])).step)
    while True:
        try:
            return _rooted(graph, sweep.edits[:count])
        except CyclicReplacementError:
            if count >= len(sweep.edits):
                raise
            count += 1


def _looked_up(edits: Sequence[Edit]) -> list[Rule]:
    """Rules that say what is written down, and nothing else."""
    found: list[Rule] = []
    for final in (False, True):
        table = {edit.before[0]: edit.after[0] for edit in edits if edit.final is final}
        ops = tuple({before.op: None for before in table})
        found.append(Rule("replay", ops, table.get, "exact", on_constant=False, final=final, doc=""))
    return found


def _rooted(graph: Graph, edits: Sequence[Edit]) -> Graph:
    roots: dict[Value, Replacement] = {}
    for edit in edits:
        for before, after in zip(edit.before, edit.after, strict=True):
            roots[before] = Replacement(edit.needs, _Build(after, edit.needs), edit.covers)
    return replace_roots(graph, roots)


@dataclass(frozen=True, slots=True)
class _Build:
    """Builds what an edit made out of new operands."""

    after: Value
    needs: tuple[Value, ...]

    def __call__(self, new: Callable[[Value], Value]) -> Value:
        built = {v: new(v) for v in self.needs}
        for value in walk([self.after], until=built):
            if value not in built:
                operands = tuple([built[v] for v in value.operands])
                is_item = value.op is leaf.ITEM
                built[value] = (
                    leaf.item(operands[0], value.attrs["index"]) if is_item else value.with_operands(operands)
                )
        return built[self.after]


__all__ = ["Chain", "History", "Made"]
