"""Which steps have no launch of their own, and what refuses it to others, as lines of the report."""

from __future__ import annotations

from dovetail.errors import DovetailError
from dovetail.report.paint import Line, Piece, line
from dovetail.report.record import LaunchEntry, Record

MARK = "LAUNCHES"
_LAYERS = "layers"
"""The kind of rows that are about all layers at once."""


def launch_lines(report: Record) -> list[Line]:
    """A line for each way that is taken or refused, and how many steps it is told of; generates the kernels."""
    if report.launches is None:
        return []
    try:
        entries = report.launches()
    except DovetailError as error:
        return [line(Piece(MARK, "note"), f" unknown: {error.message}", hang=len(MARK) + 2)]
    joined = {e.kernel for e in entries if e.taken and e.kind != _LAYERS and e.way != "launch"}
    groups: dict[tuple[object, ...], list[LaunchEntry]] = {}
    for one in entries:
        of_all = one.kind == _LAYERS
        # What refuses one way matters where no other is taken; estimates of equal layers are equal.
        if of_all or (one.taken and one.kernel in joined) or (one.reason and one.kernel not in joined):
            op = one.kind if of_all else one.op
            groups.setdefault((op, one.way, one.taken, one.reason), []).append(one)
    return [_line(str(op), some) for (op, *_), some in groups.items()]


def _line(op: str, some: list[LaunchEntry]) -> Line:
    one = some[0]
    head = (Piece(MARK, "good" if one.taken else "dim"), f"{len(some):4} × ", Piece(f"{op:<22} ", "strong"))
    found = f": {one.found}" if one.taken and one.found else f"   {one.reason}" if one.reason else ""
    hint = f"   hint: {one.hint}" if one.hint else ""
    return line(*head, f"{one.way.replace('_', ' ')}{found}{hint}", hang=len(MARK) + 2)


__all__ = ["MARK", "launch_lines"]
