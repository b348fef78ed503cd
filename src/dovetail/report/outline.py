"""The outline of a report: the numbers by which two compilations are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, cast

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError
from dovetail.report.json_form import as_dict
from dovetail.report.record import SCHEMA_VERSION
from dovetail.report.report import Report


@dataclass(frozen=True, slots=True)
class Outline:
    """What a compilation came to."""

    graph: str
    target: str
    kernels: int
    on_host: int
    fused: Mapping[str, int]
    """How many kernels each rule made, alone or inside a larger one."""
    missed: Mapping[str, int]
    """How often each rule was refused, by rule and reason; what cost declined is not counted."""
    bytes: int
    """What the kernels of a run read and write."""
    flops: int
    arena_bytes: int | None
    predicted_seconds: float
    measured_seconds: float | None = None


def outline_of(report: Report) -> Outline:
    """The outline of a report."""
    return outline_from(as_dict(report))


def outline_from(told: Any, where: str = "") -> Outline:
    """The outline of a report in its JSON form."""
    try:
        version = told["schema_version"]
        if version != SCHEMA_VERSION:
            raise LoadError(
                f"a report of version {version!r}", hint=f"this dovetail reads version {SCHEMA_VERSION}", where=where
            )
        runs = [k for k in told["kernels"] if k["phase"] == "run"]
        measured = told.get("measured")
        arena = told["arena_bytes"]
        return Outline(
            graph=str(told["graph"]),
            target=str(told["target"]),
            kernels=len(told["kernels"]),
            on_host=sum(bool(k.get("on_host")) for k in runs),
            fused=_counted(rule for f in told["fused"] for rule in dict.fromkeys((str(f["rule"]), *f["chain"]))),
            missed=_counted(f"{m['rule']}: {m['reason']}" for m in told["missed"] if m["seconds"]),
            bytes=sum(int(k["bytes"]) for k in runs),
            flops=sum(int(k["flops"]) for k in runs),
            arena_bytes=None if arena is None else int(arena),
            predicted_seconds=float(told["predicted_seconds"]),
            measured_seconds=None if measured is None else float(measured["seconds"]),
        )
    except LoadError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LoadError(
            f"this is not a report: {type(error).__name__} {error}", hint="write one with explain --json", where=where
        ) from error


def _counted(names: Iterable[Any]) -> dict[str, int]:
    counts = Counter(cast(Iterable[str], names))
    return dict(sorted(counts.items()))


__all__ = ["Outline", "outline_from", "outline_of"]
