"""What a run reads of parameters, by format: of a language model, what a token costs in bytes."""

from __future__ import annotations

from dovetail import library, ops
from dovetail.declare.cost import type_bytes
from dovetail.declare.machine import Machine, estimate
from dovetail.ir import leaf
from dovetail.ir.dim import evaluate, symbols
from dovetail.ir.dtype import f32
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value
from dovetail.report.paint import Line, Piece, line
from dovetail.report.record import WeightsEntry
from dovetail.report.units import bytes_text, percent, time_text

_LEAST = 4096
"""Elements of a parameter that counts as weights."""


def weights_of(graph: Graph, machine: Machine) -> tuple[WeightsEntry, ...]:
    """Parameters that are read as a whole by format, the largest first; none where no parameter is in blocks."""
    blocks: dict[Value, Value] = {}
    for value in graph.values:
        if value.op is library.dequantise_blocks and value.operands[0].op is leaf.PARAM:
            blocks[value.operands[0]] = value
    if not blocks:
        return ()
    found: dict[str, list[int]] = {}
    parts = _chosen(graph)
    whole = {operand for value in graph.values if value.op is not ops.gather for operand in value.operands}
    for value in [value for value in graph.parameters if value in whole]:
        floats = blocks.get(value)
        count = _elements(value if floats is None else floats)
        if count >= _LEAST:
            kind = value.dtype.name if floats is None else str(floats.attrs["format"])
            entry = found.setdefault(kind, [0, 0, 0, 0])
            size = estimate(type_bytes(value.type))
            chosen, groups = parts.get(value, (1, 1))
            for i, more in enumerate((1, size, count * f32.itemsize, size * chosen // groups)):
                entry[i] += more
    entries = [
        WeightsEntry(kind, n, size, wide, read, machine.moving(read)) for kind, (n, size, wide, read) in found.items()
    ]
    return tuple(sorted(entries, key=lambda entry: -entry.bytes))


def _chosen(graph: Graph) -> dict[Value, tuple[int, int]]:
    """Of the parameters that have a matrix for each group of rows, the groups that a token has rows of, and all."""
    found: dict[Value, tuple[int, int]] = {}
    for value in graph.values:
        if value.op is ops.grouped_matmul:
            rows, groups = value.shape[0], value.operands[1].shape[0]
            stored = value.operands[1]
            while stored.op in (ops.permute, ops.cast, library.dequantise_blocks):
                (stored,) = stored.operands
            if isinstance(groups, int) and groups > 0:
                some = evaluate(rows, dict.fromkeys(symbols(rows), 1))
                found[stored] = min(groups, some), groups
    return found


def _elements(value: Value) -> int:
    count = 1
    for size in value.shape:
        count *= size if isinstance(size, int) else 0
    return count


def weights_lines(entries: tuple[WeightsEntry, ...], total: float, mark: int) -> list[Line]:
    """A line for each format, and what a run reads together: for one token, its bytes."""
    lines = [
        line(
            Piece(f"{'WEIGHTS':<{mark}}", "note"),
            f"{entry.count:>3} × {entry.format:<10} {bytes_text(entry.bytes)}, {bytes_text(entry.as_floats)} in f32",
            hang=mark + 2,
        )
        for entry in entries
    ]
    if entries:
        size, seconds = sum(entry.read for entry in entries), sum(entry.seconds for entry in entries)
        share = f" ({percent(min(seconds / total, 1.0))} of a run)" if total else ""
        told = f"a run, and so a token, reads {bytes_text(size)} of them: {time_text(seconds)}{share}"
        lines.append(line(Piece(" " * mark, "dim"), told, hang=mark + 2))
    return lines


__all__ = ["weights_lines", "weights_of"]
