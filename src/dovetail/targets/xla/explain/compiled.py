"""The collectives of a program as XLA compiled it: kinds, bytes, mesh axes and places, read from its text."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

import numpy as np

from dovetail.ir.graph import Graph
from dovetail.targets.xla.explain.collective import KINDS, Collective
from dovetail.targets.xla.explain.lowered import compiled_text
from dovetail.targets.xla.placement import Placement

_LINE = re.compile(rf"= (\(.*?\)|\S+) ({'|'.join(KINDS)})(-start)?\(")
_TENSOR = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_DTYPES = {
    "pred": "i1",
    "s8": "i8",
    "s16": "i16",
    "s32": "i32",
    "s64": "i64",
    "u8": "ui8",
    "u32": "ui32",
    "u64": "ui64",
}
_WIDTHS = {"pred": 1, "bf16": 2}
Groups = frozenset[frozenset[int]]


def compiled_collectives(graph: Graph, placement: Placement) -> tuple[Collective, ...]:
    """Those of a graph; compiles it for the devices of this process, of which there must be enough."""
    return tuple(read_text(compiled_text(graph, placement), placement))


def read_text(text: str, placement: Placement) -> Iterator[Collective]:
    """The collectives of an HLO module. The text is no interface: what is not understood is left open."""
    for line in text.splitlines():
        found = _LINE.search(line)
        if found is not None:
            yield _collective(found[1], found[2], found[3] is not None, line, placement)


def _collective(result: str, kind: str, starts: bool, line: str, placement: Placement) -> Collective:
    tensors = [(dtype, tuple(int(n) for n in sizes.split(",") if n)) for dtype, sizes in _TENSOR.findall(result)]
    if starts and kind != "all-reduce":
        tensors = tensors[len(tensors) // 2 :][:1]  # operands come first, and a context may follow
    sizes = [math.prod(shape) * _width(dtype) for dtype, shape in tensors]
    dtype, shape = tensors[sizes.index(max(sizes))] if tensors else ("", ())
    groups = _groups(line)
    axes = _axes(groups, line, placement)
    named = re.search(r'op_name="[^"]*?/([^"]*)"', line)
    place = "/".join(named[1].split("/")[:2]) if named else "the program"
    devices = len(next(iter(groups))) if groups else math.prod(placement.sizes[a] for a in axes)
    return Collective(kind, axes, devices, shape, _DTYPES.get(dtype, dtype), sum(sizes), place, "XLA put it there", ())


def _width(dtype: str) -> int:
    bits = re.search(r"\d+", dtype)
    return _WIDTHS.get(dtype, int(bits[0]) // 8 if bits and int(bits[0]) >= 8 else 1)


def _groups(line: str) -> Groups:
    """The devices that take part together. XLA spells them in several ways."""
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{(\{.*?\})\}", line)
    if listed is not None:
        found = re.findall(r"\{([\d,]+)\}", listed[1])
        return frozenset(frozenset(map(int, group.split(","))) for group in found)
    counted = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    if counted is None:
        return frozenset()
    shape = tuple(map(int, counted[3].split(",")))
    devices = np.arange(math.prod(shape)).reshape(shape)
    if counted[4]:
        devices = devices.transpose(tuple(map(int, counted[4].split(","))))
    rows = devices.reshape(int(counted[1]), int(counted[2])).tolist()
    return frozenset(frozenset(row) for row in rows)


def _axes(groups: Groups, line: str, placement: Placement) -> tuple[str, ...]:
    """The mesh axes whose devices are the groups; none where they are others."""
    names, sizes = list(placement.sizes), list(placement.sizes.values())
    devices = np.arange(placement.devices).reshape(sizes)
    for count in range(1, len(names) + 1):
        for chosen in itertools.combinations(range(len(names)), count):
            kept = [a for a in range(len(names)) if a not in chosen]
            rows = devices.transpose((*kept, *chosen)).reshape(-1, math.prod(sizes[a] for a in chosen))
            if groups == frozenset(frozenset(row) for row in rows.tolist()):
                return tuple(names[a] for a in chosen)
    meshed = re.search(r"replica_groups=mesh\[(.*?)\] ?\{(.*?)\}", line)
    if meshed is not None:
        listed = re.findall(r"'?(\w+)'?=\d+", meshed[1])
        used = re.findall(r"'(\w+)'", meshed[2])
        return tuple(names[listed.index(a)] for a in used if a in listed and listed.index(a) < len(names))
    return ()


__all__ = ["compiled_collectives", "read_text"]
