"""The report as JSON, with a schema version."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, cast

from dovetail.report.record import SCHEMA_VERSION, Boundary, FusedEntry, Kernel, MissedEntry, Node
from dovetail.report.report import Report
from dovetail.report.search import SearchEntry


def as_dict(report: Report) -> dict[str, Any]:
    """The report as plain lists and numbers."""
    return {
        "schema_version": SCHEMA_VERSION,
        "graph": report.graph,
        "target": report.target,
        "nodes_before": report.nodes_before,
        "nodes_after": report.nodes_after,
        "ops_before": dict(report.ops_before),
        "ops_after": dict(report.ops_after),
        "fused": [_fused(f) for f in report.fused],
        "missed": [_missed(m) for m in report.missed],
        "near": [_missed(m) for m in report.near],
        "boundaries": [_fields(b) for b in report.boundaries],
        "kernels": [
            {**_fields(k), **{part: [_fields(n) for n in getattr(k, part)] for part in ("nodes", "absorbed", "serves")}}
            for k in report.kernels
        ],
        "dispatch": [asdict(d) for d in report.dispatch],
        "passes": [asdict(p) for p in report.passes],
        "predicted_seconds": report.predicted_seconds,
        "assumed_sizes": dict(report.assumed_sizes),
        "arena_bytes": report.arena_bytes,
        "calibration": report.calibration,
        "floor_seconds": report.floor_seconds,
        "measured": None if report.measured is None else asdict(report.measured),
        "repeats": [{"count": r.count, "kernels": [list(copy) for copy in r.kernels]} for r in report.repeats],
        "stopped": [asdict(s) for s in report.stopped],
        "search": None if report.search is None else _search(report.search),
        "weights": [asdict(w) for w in report.weights],
        "donated": [asdict(d) for d in report.donated],
        "recompute": None if report.recompute is None else asdict(report.recompute),
    }


def as_json(report: Report, *, indent: int | None = 2) -> str:
    return json.dumps(as_dict(report), indent=indent, ensure_ascii=True)


def _fields(entry: Boundary | Kernel | Node | MissedEntry) -> dict[str, Any]:
    """The fields of an entry; dataclasses.asdict would copy each of them, which tens of thousands do not need."""
    return {field.name: getattr(entry, field.name) for field in fields(entry)}


def _fused(entry: FusedEntry) -> dict[str, Any]:
    return {
        "rule": entry.rule,
        "nodes": [n.name for n in entry.nodes],
        "ops": [n.op for n in entry.nodes],
        "where": list(dict.fromkeys(n.where for n in entry.nodes if n.where)),
        "chain": list(entry.chain),
        "kernel": entry.kernel,
        "bytes_saved": entry.bytes_saved,
        "seconds_saved": entry.seconds_saved,
    }


def _missed(entry: MissedEntry) -> dict[str, Any]:
    """Every field; the node is its name, its op and its place."""
    told: dict[str, Any] = {}
    for name, value in _fields(entry).items():
        if name == "node":
            told |= {"node": entry.node.name, "op": entry.node.op, "where": entry.node.where}
        else:
            told[name] = list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
    return told


def _search(entry: SearchEntry) -> dict[str, Any]:
    """All but how long it took: two reports of one model say the same."""
    return {name: told for name, told in asdict(entry).items() if name not in ("seconds", "phases")}


__all__ = ["as_dict", "as_json"]
