"""The stages of a graph as drawings, from what was imported to the plan with its kernels as rooms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.declare.cost import is_free
from dovetail.declare.fused import FusedOp
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.text_print import local_names
from dovetail.ir.value import Value
from dovetail.ops.region import region
from dovetail.passes.pipeline import Lowered
from dovetail.plan.plan import Plan
from dovetail.report.html.family import FAMILIES, Family, family_of, kernel_family
from dovetail.report.html.layout import LANE, Band, Layout, lay_out
from dovetail.report.html.rooms import Rooms, lines_inside
from dovetail.report.kernels import KernelMap, kernel_map
from dovetail.report.runs import Item

_LETTER = 7.2
_CHIP = 30.0
_SMALL_CHIP = 22.0
_CLOSE = 26.0
"""Between rows of plain chips, where no joint has to be shown."""


@dataclass(slots=True)
class Words:
    """Every text of the drawings once, by number."""

    listed: list[str] = field(default_factory=list[str])
    _known: dict[str, int] = field(default_factory=dict[str, int])

    def __call__(self, text: str) -> int:
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = len(self.listed)
            self.listed.append(text)
        return found


@dataclass(frozen=True, slots=True)
class Thing:
    """One thing of a drawing: its words, the kernel that it ends in (-1: none), and its room (-1: a plain chip)."""

    name: str
    op: str
    type: str
    where: str
    family: Family
    kernel: int
    room: int = -1
    fused: bool = False


@dataclass(frozen=True, slots=True)
class _Homes:
    """The kernels by number, and what kind of work each does."""

    kernels: KernelMap
    number: Mapping[Value, int]
    families: Mapping[Value, Family]
    credited: Mapping[str, int]
    """Node of the graph as written -> the kernel that the report says computes it."""

    @staticmethod
    def of(lowered: Lowered, plan: Plan) -> _Homes:
        kernels = kernel_map(lowered.written, plan, lowered.places)
        op_of = {v.op.name: v.op for v in lowered.written.values}
        return _Homes(
            kernels,
            {kernel: i for i, kernel in enumerate(kernels.kernels)},
            {k: kernel_family(k.op, [op_of[n.op] for n in kernels.nodes[k]]) for k in kernels.kernels},
            {n.name: i for i, k in enumerate(kernels.kernels) for n in kernels.nodes[k]},
        )


@dataclass(slots=True)
class _Draft:
    """A drawing as it is put together: the things and how large each is."""

    graph: Graph
    names: Mapping[Value, str]
    things: list[Thing] = field(default_factory=list[Thing])
    items: list[Item] = field(default_factory=list[Item])
    place: dict[Value, int] = field(default_factory=dict[Value, int])

    def add(self, value: Value, thing: Thing, item: Item) -> None:
        self.place[value] = len(self.items)
        self.things.append(thing)
        self.items.append(item)

    def add_input(self, value: Value) -> None:
        thing = Thing(self.names[value], "input", str(value.type), self.graph.where(value), "end", -1)
        self.add(value, thing, _chip(thing, (), late=True))

    def add_outputs(self) -> None:
        for name, value in self.graph.outputs.items():
            thing = Thing(name, "output", str(value.type), self.graph.where(value), "end", -1)
            self.things.append(thing)
            self.items.append(_chip(thing, self.read_by([value])))

    def read_by(self, operands: Iterable[Value]) -> tuple[int, ...]:
        """The things that make these values, each once."""
        made = [_made(v, self.place) for v in operands]
        return tuple(dict.fromkeys([m for m in made if m is not None]))

    def finish(self, name: str, words: Words, lane: float) -> dict[str, Any]:
        self.add_outputs()
        return _as_dict(name, self.things, self.items, lay_out(self.items, lane=lane), words)


def stage_views(lowered: Lowered, plan: Plan) -> dict[str, Any]:
    """All stages with the words and rooms that they share, as plain lists and numbers."""
    homes = _Homes.of(lowered, plan)
    words, rooms = Words(), Rooms()
    views = [_stage(name, graph, moves, homes, words) for name, graph, moves in _stages(lowered)]
    views.append(_plan_view(lowered, plan, homes, words, rooms))
    return {
        "words": words.listed,
        "families": list(FAMILIES),
        "rooms": [room.as_dict() for room in rooms.shapes],
        "views": views,
    }


def _stages(lowered: Lowered) -> Iterable[tuple[str, Graph, list[Mapping[Value, Value]] | None]]:
    """Each stage with its graph and the moves that lead from there to the end; None where the report names them."""
    later = {r.name: i for i, r in enumerate(lowered.records)}
    yield "imported", lowered.written, None
    rounds = lowered.state.rounds
    first = next((i for i, r in enumerate(rounds) if any(op.stage == "fuse" for op in r.ops)), None)
    after_fuse = [r.after.moved for r in lowered.records[later.get("fuse", -1) + 1 :]]
    if first is not None:
        yield "recognised", rounds[first].before, [*(r.moved for r in rounds[first:]), *after_fuse]
    last_fused = max((i for i, r in enumerate(lowered.records) if r.stage == "fused"), default=None)
    if last_fused is not None:
        yield "fused", lowered.stage("fused"), [r.after.moved for r in lowered.records[last_fused + 1 :]]
    yield "legal", lowered.graph, []


def _stage(
    name: str, graph: Graph, moves: Sequence[Mapping[Value, Value]] | None, homes: _Homes, words: Words
) -> dict[str, Any]:
    """A graph value by value; parameters and constants are left to those who read them."""
    draft = _Draft(graph, local_names(graph, graph.values))
    bound: set[Value] = set()
    for value in graph.values:
        if value.op is leaf.INPUT:
            draft.add_input(value)
            continue
        if all(v in bound for v in value.operands):
            bound.add(value)
        if value.op in leaf.LEAVES and value.op is not leaf.ITEM:
            continue
        kernel = homes.credited.get(draft.names[value], -1) if moves is None else _ends_in(value, moves, homes)
        fused = isinstance(value.op, FusedOp) or value.op is region
        family = homes.families[homes.kernels.kernels[kernel]] if fused and kernel >= 0 else family_of(value.op)
        where, type = graph.where(value), str(value.type)
        thing = Thing(draft.names[value], value.op.name, type, where, family, kernel, fused=fused)
        operands = tuple([draft.place[v] for v in dict.fromkeys(value.operands) if v in draft.place])
        draft.add(value, thing, _chip(thing, operands, late=value in bound, small=is_free(value)))
    return draft.finish(name, words, _CLOSE)


def _ends_in(value: Value, moves: Sequence[Mapping[Value, Value]], homes: _Homes) -> int:
    for move in moves:
        value = move.get(value, value)
    kernel = homes.kernels.kernel_of(value)
    return -1 if kernel is None else homes.number[kernel]


def _chip(thing: Thing, operands: tuple[int, ...], *, late: bool = False, small: bool = False) -> Item:
    shown = thing.name if thing.family == "end" else thing.op
    letters = max(len(shown), min(len(thing.type), 26) * 0.86) if not small else len(shown) * 0.92
    width = int(min(letters, 34) * _LETTER + 20)
    key = (thing.op, width, thing.type, late)
    return Item(key, width, _SMALL_CHIP if small else _CHIP, operands, late)


def _plan_view(lowered: Lowered, plan: Plan, homes: _Homes, words: Words, rooms: Rooms) -> dict[str, Any]:
    """The steps of the plan as rooms; what is a view is seen through."""
    kernels = homes.kernels
    inside = lines_inside(lowered.written, kernels, local_names(lowered.written, lowered.written.values))
    draft = _Draft(plan.graph, kernels.names)
    phases = {step.value: step.phase for step in plan.steps}
    for value in plan.graph.values:
        if value.op is leaf.INPUT:
            draft.add_input(value)
        if value not in phases:
            continue
        nodes = kernels.nodes[value]
        room = rooms.of(value.op.name, [n.op for n in nodes], inside[value])
        fused = isinstance(value.op, FusedOp) or value.op is region or len(nodes) > 1
        where, type = plan.graph.where(value), str(value.type)
        family, number = homes.families[value], homes.number[value]
        thing = Thing(draft.names[value], value.op.name, type, where, family, number, room, fused)
        late = phases[value] == "bind"
        shape = rooms.shapes[room]
        read = tuple([v.type for v in value.operands])
        item = Item((room, type, read, late), shape.width, shape.height, draft.read_by(value.operands), late)
        draft.add(value, thing, item)
    return draft.finish("plan", words, LANE)


def _made(value: Value, place: Mapping[Value, int]) -> int | None:
    """The thing that makes a value, seen through views and projections."""
    while value not in place:
        if len(value.operands) != 1:
            return None
        value = value.operands[0]
    return place[value]


def _as_dict(name: str, things: Sequence[Thing], items: Sequence[Item], layout: Layout, words: Words) -> dict[str, Any]:
    """Columns in the order of the drawing, then bands."""
    shown = [things[i] for i in layout.order]
    return {
        "name": name,
        "names": [words(t.name) for t in shown],
        "ops": [words(t.op) for t in shown],
        "types": [words(t.type) for t in shown],
        "wheres": [words(t.where) for t in shown],
        "families": [FAMILIES.index(t.family) for t in shown],
        "kernels": [t.kernel for t in shown],
        "rooms": [t.room for t in shown],
        "fused": [int(t.fused) for t in shown],
        "late": [int(items[i].late) for i in layout.order],
        "operands": [list(o) for o in layout.operands],
        "bands": [_band(band, layout, items) for band in layout.bands],
    }


def _band(band: Band, layout: Layout, items: Sequence[Item]) -> dict[str, Any]:
    run, drawing = band.run, band.drawing
    sizes = [items[layout.order[run.start + i]] for i in range(run.period)]
    return {
        "start": run.start,
        "period": run.period,
        "count": run.count,
        "width": drawing.width,
        "height": drawing.height,
        "x": list(drawing.x),
        "y": list(drawing.y),
        "w": [s.width for s in sizes],
        "h": [s.height for s in sizes],
        "entries": [[list(read) for read in entry] for entry in band.entries],
        "exits": list(band.exits),
        "wires": [[w.source, w.target, *w.points] for w in drawing.wires],
    }
