"""A placement as a picture: devices as lanes by mesh axis, collectives as joints between them in program order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.report.fold_names import without_numbers
from dovetail.report.runs import Item, find_runs


@dataclass(frozen=True, slots=True)
class MeshJoint:
    """A collective: devices along mesh axes hand over a tensor."""

    kind: str
    axes: tuple[str, ...]
    """Those whose devices take part together; none where it is not known."""
    devices: int
    type: str
    bytes: int
    """Of its result on one device."""
    seconds: float
    place: str
    """The user's part of the model."""
    why: str
    remedies: tuple[int, ...] = ()
    """The remedies that change a placement that it comes from, by number."""


@dataclass(frozen=True, slots=True)
class MeshRemedy:
    """Another placement for tensors: what it gains, and the bytes of parameters on a device after it."""

    pattern: str
    placed: str
    instead_of: str
    collectives: int
    seconds: float
    weights: int


@dataclass(frozen=True, slots=True)
class MeshEntry:
    """A program on a mesh of devices."""

    axes: tuple[tuple[str, int], ...]
    """Names and sizes, the outermost first."""
    joints: tuple[MeshJoint, ...]
    """In the order of the program."""
    remedies: tuple[MeshRemedy, ...]
    seconds: float
    all_weights: int
    """Bytes of parameters, and of those on one device."""
    weights: int
    unexplained: str = ""
    """Why there are no reasons, where there are none."""


def lanes_picture(mesh: MeshEntry) -> dict[str, Any]:
    """What the page draws; `runs` are joints that repeat, as layers do, by start, period and count."""
    return {
        **asdict(mesh),
        "axes": [{"name": name, "size": size} for name, size in mesh.axes],
        "runs": [[run.start, run.period, run.count] for run in find_runs(_items(mesh.joints))],
    }


def _items(joints: Sequence[MeshJoint]) -> list[Item]:
    """Joints as things to draw: those of equal layers look the same."""
    return [
        Item((j.kind, j.axes, j.type, j.bytes, without_numbers(j.place), without_numbers(j.why)), 1.0, 1.0, ())
        for j in joints
    ]


__all__ = ["MeshEntry", "MeshJoint", "MeshRemedy", "lanes_picture"]
