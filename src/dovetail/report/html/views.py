"""The stages of a graph as drawings, from what was imported to the plan with its kernels as rooms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from dovetail.report.html.fold import Item
from dovetail.report.html.layout import Layout, lay_out
from dovetail.report.html.rooms import Rooms, lines_inside
from dovetail.report.kernels import KernelMap, kernel_map

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


def stage_views(lowered: Lowered, plan: Plan) -> dict[str, Any]:
    """All stages with the words and rooms that they share, as plain lists and numbers."""
    kernels = kernel_map(lowered.written, plan, lowered.moved)
    number = {kernel: i for i, kernel in enumerate(kernels.kernels)}
    families = _families(lowered.written, kernels)
    words, rooms = Words(), Rooms()
    views: list[dict[str, Any]] = []
    for name, graph, moves in _stages(lowered):
        views.append(_stage(name, graph, moves, kernels, number, families, words))
    views.append(_plan_view(lowered, plan, kernels, number, families, words, rooms))
    return {
        "words": words.listed,
        "families": list(FAMILIES),
        "rooms": [room.as_dict() for room in rooms.shapes],
        "views": views,
    }


def _stages(lowered: Lowered) -> Iterable[tuple[str, Graph, list[Mapping[Value, Value]]]]:
    """Each stage with its graph and the moves that lead from there to the end."""
    later = {r.name: i for i, r in enumerate(lowered.records)}
    yield "imported", lowered.written, [lowered.moved]
    rounds = lowered.state.rounds
    first = next((i for i, r in enumerate(rounds) if any(op.stage == "fuse" for op in r.ops)), None)
    after_fuse = [r.after.moved for r in lowered.records[later.get("fuse", -1) + 1 :]]
    if first is not None:
        yield "recognised", rounds[first].before, [*(r.moved for r in rounds[first:]), *after_fuse]
    last_fused = max((i for i, r in enumerate(lowered.records) if r.stage == "fused"), default=None)
    if last_fused is not None:
        moves = [r.after.moved for r in lowered.records[last_fused + 1 :]]
        yield "fused", lowered.stage("fused"), moves
    yield "legal", lowered.graph, []


def _families(written: Graph, kernels: KernelMap) -> dict[Value, Family]:
    op_of = {v.op.name: v.op for v in written.values}
    return {k: kernel_family(k.op, [op_of[n.op] for n in kernels.nodes[k]]) for k in kernels.kernels}


def _stage(
    name: str,
    graph: Graph,
    moves: Sequence[Mapping[Value, Value]],
    kernels: KernelMap,
    number: Mapping[Value, int],
    families: Mapping[Value, Family],
    words: Words,
) -> dict[str, Any]:
    names = local_names(graph, graph.values)
    things: list[Thing] = []
    items: list[Item] = []
    place: dict[Value, int] = {}
    bound: set[Value] = set()
    for value in graph.values:
        if value.op is leaf.INPUT:
            place[value] = len(items)
            things.append(Thing(names[value], "input", str(value.type), graph.where(value), "end", -1))
            items.append(_chip(things[-1], (), late=True))
        if value.op in leaf.LEAVES and value.op is not leaf.ITEM:
            if value.op is not leaf.INPUT:
                bound.add(value)
            continue
        if all(v in bound for v in value.operands):
            bound.add(value)
        end = value
        for move in moves:
            end = move.get(end, end)
        kernel = kernels.kernel_of(end)
        fused = isinstance(value.op, FusedOp) or value.op is region
        family = families[kernel] if kernel is not None and fused else family_of(value.op)
        thing = Thing(
            names[value],
            value.op.name,
            str(value.type),
            graph.where(value),
            family,
            number[kernel] if kernel is not None else -1,
            fused=fused,
        )
        place[value] = len(items)
        operands = tuple([place[v] for v in dict.fromkeys(value.operands) if v in place])
        things.append(thing)
        items.append(_chip(thing, operands, late=value in bound, small=is_free(value)))
    _add_outputs(graph, place, things, items, kernels_of=lambda value: None)
    return _as_dict(name, things, items, lay_out(items, lane=_CLOSE), words)


def _chip(thing: Thing, operands: tuple[int, ...], *, late: bool = False, small: bool = False) -> Item:
    shown = thing.name if thing.family == "end" else thing.op
    letters = max(len(shown), min(len(thing.type), 26) * 0.86) if not small else len(shown) * 0.92
    width = int(min(letters, 34) * _LETTER + 20)
    key = (thing.op, width, thing.type, late)
    return Item(key, width, _SMALL_CHIP if small else _CHIP, operands, late)


def _add_outputs(graph: Graph, place: Mapping[Value, int], things: list[Thing], items: list[Item], kernels_of: Any) -> None:
    for name, value in graph.outputs.items():
        at = place.get(value, kernels_of(value))
        thing = Thing(name, "output", str(value.type), graph.where(value), "end", -1)
        things.append(thing)
        items.append(_chip(thing, () if at is None else (at,)))


def _plan_view(
    lowered: Lowered,
    plan: Plan,
    kernels: KernelMap,
    number: Mapping[Value, int],
    families: Mapping[Value, Family],
    words: Words,
    rooms: Rooms,
) -> dict[str, Any]:
    graph = plan.graph
    inside = lines_inside(lowered.written, kernels, local_names(lowered.written, lowered.written.values))
    things: list[Thing] = []
    items: list[Item] = []
    place: dict[Value, int] = {}
    step = {s.value: s for s in plan.steps}
    for value in graph.values:
        if value.op is leaf.INPUT:
            place[value] = len(items)
            things.append(Thing(kernels.names[value], "input", str(value.type), graph.where(value), "end", -1))
            items.append(_chip(things[-1], (), late=True))
        if value not in step:
            continue
        made = [m for v in dict.fromkeys(value.operands) if (m := _made(v, place)) is not None]
        room = rooms.of(value.op.name, [n.op for n in kernels.nodes[value]], inside[value])
        shape = rooms.shapes[room]
        thing = Thing(
            kernels.names[value],
            value.op.name,
            str(value.type),
            graph.where(value),
            families[value],
            number[value],
            room,
            isinstance(value.op, FusedOp) or value.op is region or len(kernels.nodes[value]) > 1,
        )
        place[value] = len(items)
        late = step[value].phase == "bind"
        things.append(thing)
        items.append(
            Item((room, thing.type, late), shape.width, shape.height, tuple(dict.fromkeys(made)), late)
        )
    _add_outputs(graph, place, things, items, lambda value: _made(value, place))
    return _as_dict("plan", things, items, lay_out(items), words)


def _made(value: Value, place: Mapping[Value, int]) -> int | None:
    """The thing that makes a value, seen through views and projections."""
    while value not in place:
        if len(value.operands) != 1:
            return None
        value = value.operands[0]
    return place[value]


def _as_dict(
    name: str, things: Sequence[Thing], items: Sequence[Item], layout: Layout, words: Words
) -> dict[str, Any]:
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


def _band(band: Any, layout: Layout, items: Sequence[Item]) -> dict[str, Any]:
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
