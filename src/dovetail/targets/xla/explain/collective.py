"""A collective: what moves, over which mesh axes, what it costs, where it is in the model, and why it is there."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.targets.xla.placement import Placement

_INTEGERS = {"i1": 1, "i8": 1, "ui8": 1, "i16": 2, "ui16": 2, "i32": 4, "ui32": 4, "i64": 8, "ui64": 8}
_BYTES = {**_INTEGERS, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}
WORDS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "all_slice": "slice",
    "all_to_all": "all-to-all",
    "reduce_scatter": "reduce-scatter",
    "collective_permute": "collective-permute",
}
KINDS = tuple(word for word in WORDS.values() if word != "slice")
FREE = "slice"
"""Every device keeps a part of what it has: nothing moves."""


@dataclass(frozen=True, slots=True)
class Link:
    """A mesh axis as a wire: the time to start, and the bytes a second of a device's port."""

    start_seconds: float = 5e-6
    bytes_per_second: float = 50e9


@dataclass(frozen=True, slots=True)
class Links:
    """The links of the axes of a mesh; those that are not measured are taken for ordinary ones."""

    by_axis: Mapping[str, Link] = field(default_factory=dict[str, Link])
    source: str = "built-in"
    """Where they come from."""

    def text(self, axes: Iterable[str]) -> str:
        """For people: the figures of mesh axes, and where they come from."""
        if not self.by_axis:
            usual = Link()
            return f"{self.source}, a start of {usual.start_seconds * 1e6:.0f} µs and {_rate(usual)} for each axis"
        said = [f"{axis} {self.of((axis,)).start_seconds * 1e6:.1f} µs and {_rate(self.of((axis,)))}" for axis in axes]
        return f"{self.source}: {', '.join(said)}"

    def of(self, axes: tuple[str, ...]) -> Link:
        """The slowest of several axes."""
        links = [self.by_axis.get(axis, Link()) for axis in axes] or [Link()]
        return Link(max(f.start_seconds for f in links), min(f.bytes_per_second for f in links))


def _rate(link: Link) -> str:
    return f"{link.bytes_per_second / 1e9:.3g} GB/s"


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of the program of a device."""

    kind: str
    axes: tuple[str, ...]
    """The mesh axes over which bytes move."""
    devices: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    """Of its result on one device."""
    place: str
    """The user's part of the model."""
    why: str
    origins: tuple[str, ...]
    """The parameters and inputs whose placements it comes from."""

    def seconds(self, links: Links) -> float:
        """The time of a ring of the devices."""
        link = links.of(self.axes)
        starts, moved = ring(self.kind, self.devices, self.bytes)
        return starts * link.start_seconds + moved / link.bytes_per_second


def ring(kind: str, devices: int, bytes: int) -> tuple[float, float]:
    """How often a device starts to send, and the bytes that it sends: (n - 1) / n of the whole, twice for a sum."""
    share, starts = (devices - 1) / devices * bytes, devices - 1.0
    match kind:
        case "slice":
            return 0.0, 0.0
        case "all-reduce":
            return 2 * starts, 2 * share
        case "reduce-scatter":
            return starts, share * devices
        case "collective-permute":
            return 1.0, float(bytes)
        case _:
            return starts, share


def repeated(name: str) -> str:
    """The name of one of many equal layers, for all of them."""
    return re.sub(r"(?<=\.)\d+(?=[./]|$)", "*", name)


def read(described: Mapping[str, Any], names: list[str], placement: Placement) -> Collective:
    """Read a collective from Shardy's child; `names` are those of the arguments."""
    sizes = placement.sizes
    axes = tuple(str(a) for a in described["axes"])
    shape, dtype = _tensor(described["type"])
    split = math.prod(sizes[a] for a in described["split"])
    kind = WORDS[described["kind"]]
    why, origins = _reason(kind, axes, described, names, placement)
    if described["repeats"]:
        why += "; once in every trip of a loop, and one trip is counted"
    return Collective(
        kind=kind,
        axes=axes,
        devices=described["devices"] or math.prod(sizes[a] for a in axes),
        shape=shape,
        dtype=dtype,
        bytes=math.prod(shape) * _BYTES.get(dtype, 4) // max(split, 1),
        # What happens to an argument is put where it is read.
        place=_place(described["place"] or next((r["place"] for r in described["readers"]), "")),
        why=why,
        origins=tuple(dict.fromkeys(origins)),
    )


def _tensor(text: str) -> tuple[tuple[int, ...], str]:
    *sizes, dtype = text.removeprefix("tensor<").removesuffix(">").split("x")
    return tuple(map(int, sizes)), dtype


def _place(scopes: str) -> str:
    """The model's own scope and the op in it; what JAX writes after them is left out."""
    return "/".join(scopes.split("/")[:2]) or "the program"


def _reason(
    kind: str, axes: tuple[str, ...], described: Mapping[str, Any], names: list[str], placement: Placement
) -> tuple[str, list[str]]:
    def from_(origins: Mapping[str, Any]) -> list[str]:
        # A permutation takes a split from one axis of the mesh to another.
        seen = [o for axis, o in origins.items() if axis in axes or kind == "collective-permute"]
        return [names[o] if isinstance(o, int) else str(o) for o in seen]

    def said(name: str) -> str:
        rule = placement.rule(name)
        return f'{repeated(name)} is placed "{rule.placed if rule else "-"}"'

    over = "+".join(axes)
    if kind == "all-reduce":
        origins = [name for part in described["summed"] for name in from_(part)]
        since = " and ".join(dict.fromkeys(map(said, origins))) or "an operand is split there"
        return f"{described['maker'] or 'it'} sums over an axis that is split over {over}, since {since}", origins
    origins = from_(described["origins"])
    come = f"it comes split over {over}, since {' and '.join(dict.fromkeys(map(said, origins)))}"
    unknown = "it is whole on every device" if kind == FREE else f"it comes split over {over}"
    first = come if origins else unknown
    if not described["readers"]:
        return f"{first}, and it is a result", origins
    reader = described["readers"][0]
    others = [name for part in reader["origins"] for name in from_(part) if name not in origins]
    along = " and ".join(dict.fromkeys(map(said, others)))
    how = f"split over {over}, since {along}" if others else "whole"
    return f"{first}, and {reader['op']} at {repeated(_place(reader['place']))} reads it {how}", [*origins, *others]


__all__ = ["FREE", "KINDS", "Collective", "Link", "Links", "read", "repeated", "ring"]
