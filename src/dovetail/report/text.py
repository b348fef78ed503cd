"""The report as text for people: what repeats is shown once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.report.measured import KernelTime, Measured
    from dovetail.report.record import FusedEntry, MissedEntry, Report


@dataclass(slots=True)
class _Line:
    """Entries that say the same thing."""

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0
    places: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, bytes: int, seconds: float, where: str) -> None:
        self.count += 1
        self.bytes += bytes
        self.seconds += seconds
        if where:
            self.places[where] = None


def as_text(report: Report) -> str:
    """A ranked summary: the costliest misses first."""
    lines = [report.summary]
    if report.arena_bytes is not None:
        lines[0] += f", arena {bytes_text(report.arena_bytes)}"
    if report.measured is not None:
        lines += _measured(report.predicted_seconds, report.measured)
    lines += _fused(report.fused)
    lines += _missed(report.missed, report.predicted_seconds)
    lines += _apart(report)
    lines += _on_host(report)
    if report.assumed_sizes:
        sizes = ", ".join(f"{name} = {size}" for name, size in report.assumed_sizes.items())
        lines.append(f"estimates count {sizes}")
    lines.append(f"calibration: {report.calibration}")
    return "\n".join(lines)


MOST_KERNELS = 8
"""Lines of measured kernels; what takes less is one line."""


def _measured(predicted: float, measured: Measured) -> list[str]:
    """The whole run, then the kernels that take longest; those of one op and type are one line."""
    lines = [
        f"predicted {time_text(predicted)}   measured {time_text(measured.seconds)} "
        f"(median of {measured.runs}, ±{time_text(measured.spread)})   {percent(measured.roofline)} of the roofline"
    ]
    groups: dict[tuple[str, str, bool], list[KernelTime]] = {}
    for kernel in measured.kernels:
        groups.setdefault((kernel.op, kernel.type, kernel.on_host), []).append(kernel)
    ranked = sorted(groups.items(), key=lambda item: -sum(k.seconds for k in item[1]))
    for (op, type, on_host), kernels in ranked[:MOST_KERNELS]:
        seconds, least = sum(k.seconds for k in kernels), sum(k.seconds * k.roofline for k in kernels)
        where = ", on the host" if on_host else f", {percent(least / seconds)} of the roofline" if seconds else ""
        lines.append(
            f"KERNEL  {len(kernels):4} × {op:<22} {time_text(seconds):>9} ({percent(seconds / measured.seconds)}), "
            f"predicted {time_text(sum(k.predicted_seconds for k in kernels))}{where}   {_short(type)}"
        )
    rest = [k for _, kernels in ranked[MOST_KERNELS:] for k in kernels]
    if rest:
        seconds = sum(k.seconds for k in rest)
        lines.append(
            f"KERNEL  {len(rest):4} others  {'':18} {time_text(seconds):>9} ({percent(seconds / measured.seconds)})"
        )
    over = measured.overhead_seconds
    lines.append(f"        beside kernels {'':14} {time_text(over):>9} ({percent(over / measured.seconds)})")
    return lines


def _on_host(report: Report) -> list[str]:
    """What runs as NumPy, and its share of the time where it was measured."""
    groups: dict[str, _Line] = {}
    for kernel in report.kernels:
        if kernel.on_host:
            where = next((n.where for n in reversed(kernel.nodes) if n.where), "")
            groups.setdefault(kernel.op, _Line()).add(kernel.bytes, kernel.seconds, where)
    measured = report.measured
    took: dict[str, float] = {}
    for kernel in measured.kernels if measured is not None else ():
        took[kernel.op] = took.get(kernel.op, 0.0) + kernel.seconds * kernel.on_host
    lines: list[str] = []
    for op, line in sorted(groups.items()):
        share = f"takes {time_text(took[op])} ({percent(took[op] / measured.seconds)}), " if measured else ""
        lines.append(f"HOST    {line.count:4} × {op:<22} {share}has no compiled kernel{_places(line.places)}")
    return lines


def percent(share: float) -> str:
    """A share for people."""
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else f"{100 * share:.1g} %"


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _fused(entries: Iterable[FusedEntry]) -> list[str]:
    groups: dict[str, _Line] = {}
    for entry in entries:
        # The last node is the result; the first may be shared with other kernels.
        where = next((n.where for n in reversed(entry.nodes) if n.where), "")
        groups.setdefault(entry.rule, _Line()).add(entry.bytes_saved, entry.seconds_saved, where)
    ranked = sorted(groups.items(), key=lambda item: (-item[1].bytes, item[0]))
    return [
        f"FUSED   {line.count:4} × {rule:<22} saves {bytes_text(line.bytes):>9} a run{_places(line.places)}"
        for rule, line in ranked
    ]


def _missed(entries: Iterable[MissedEntry], total: float) -> list[str]:
    groups: dict[tuple[str, str, str, str], _Line] = {}
    for entry in entries:
        key = (entry.rule, entry.reason, entry.message, entry.hint)
        groups.setdefault(key, _Line()).add(entry.bytes, entry.seconds, entry.node.where or str(entry.node))
    lines: list[str] = []
    for (rule, reason, message, hint), line in sorted(groups.items(), key=lambda item: (-item[1].seconds, item[0])):
        share = f" ({100 * line.seconds / total:.0f} %)" if total > 0 else ""
        price = f"costs {time_text(line.seconds)}{share}" if line.seconds else "would not pay"
        lines.append(f"MISSED  {line.count:4} × {rule:<22} {price}{_places(line.places)}")
        lines.append(f"        {reason}: {message}")
        if hint:
            lines.append(f"        hint: {hint}")
    return lines


def _apart(report: Report) -> list[str]:
    groups: dict[str, _Line] = {}
    for boundary in report.boundaries:
        groups.setdefault(boundary.reason, _Line()).add(boundary.bytes, boundary.seconds, "")
    return [
        f"APART   {line.count:4} × {reason:<22} moves {bytes_text(line.bytes):>9}, {time_text(line.seconds)}"
        for reason, line in sorted(groups.items(), key=lambda item: (-item[1].seconds, item[0]))
    ]


def _places(places: Iterable[str]) -> str:
    places = list(places)
    if not places:
        return ""
    shown = ", ".join(places[:2])
    return f"   at {shown}" + (f" and {len(places) - 2} more" if len(places) > 2 else "")


def bytes_text(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def time_text(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
