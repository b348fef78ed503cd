"""The report as text for people: ranked, what repeats shown once, and short enough for a screen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import field

from dovetail.dataclass import dataclass
from dovetail.declare.cost import ASSUMED_SIZE
from dovetail.report.compiled_text import compiled_lines
from dovetail.report.fold_names import fold_names, without_numbers
from dovetail.report.launch_text import launch_lines
from dovetail.report.paint import PLAIN, Line, Look, Piece, Tone, line, shown
from dovetail.report.recompute import RecomputeEntry
from dovetail.report.record import FusedEntry, Kernel, MissedEntry, Record, facts
from dovetail.report.rounding import rounding_lines
from dovetail.report.search_text import search_lines
from dovetail.report.units import bytes_text, percent, time_text
from dovetail.report.weights import weights_lines

WINOGRAD = 4.0
"""Multiply-adds of a 3×3 convolution for each one that F(4×4, 3×3) computes."""
BEYOND = 1.05
"""A share of the roofline above this is no noise of a measurement."""
MOST_KERNELS = 8
MOST_FUSED = 12
MOST_MISSED = 6
MOST_OTHERS = 6
"""Lines of each kind; what matters less is one line more."""

_MARK = 8
_PLACES = 3
_LONGEST_PLACE = 64
_MOST_OPS = 12


@dataclass(slots=True)
class _Group:
    """Entries that say the same thing."""

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0
    places: dict[str, None] = field(default_factory=dict[str, None])
    messages: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, bytes: int, seconds: float, where: str, message: str = "") -> None:
        self.count += 1
        self.bytes += bytes
        self.seconds += seconds
        if where:
            self.places[where] = None
        self.messages[message] = None


def as_text(report: Record, look: Look = PLAIN, *, everything: bool = False) -> str:
    """A ranked summary, the costliest misses first. `everything` leaves nothing to one line for many."""
    lines = [_head(report), _times(report)]
    lines += _fused(report.fused, everything)
    # A gap that two rules speak of is told once, with its price.
    told = [m for m in report.missed if everything or not m.instead]
    lines += _missed(told, report.predicted_seconds, everything)
    lines += _near(report.near) if everything else []
    lines += search_lines(report.search) if everything else []
    lines += _stopped(report)
    lines += _on_host(report, everything)
    lines += weights_lines(report.weights, report.predicted_seconds, _MARK)
    lines += rounding_lines(report.kernels, _MARK)
    lines += _donated(report, everything)
    lines += _recompute(report.recompute, report.predicted_seconds, everything) if report.recompute else []
    lines += _apart(report, everything)
    lines += _blocks(report, everything)
    lines += _kernels(report, everything)
    lines += [*compiled_lines(report), *launch_lines(report)] if everything else []
    if report.assumed_sizes:
        sizes = ", ".join(f"{name} = {size}" for name, size in report.assumed_sizes.items())
        first = next(iter(report.assumed_sizes))
        asked = f"; open sizes count {ASSUMED_SIZE} each: give yours, as in --size {first}=1"
        lines.append(line(Piece(f"estimates count {sizes}{asked}", "dim"), hang=2))
    lines.append(line(Piece(f"calibration: {report.calibration}", "dim"), hang=2))
    return shown(lines, look)


def _donated(report: Record, everything: bool) -> list[Line]:
    """How many outputs are computed in the memory of an input, and each that has to be copied there."""
    there = [d for d in report.donated if not d.reason]
    copied = sorted((d for d in report.donated if d.reason), key=lambda d: -d.copied_bytes)
    lines: list[Line] = []
    if there:
        named = ", ".join(f"{d.output} in {d.input}" for d in there[:_PLACES])
        more = f" and {len(there) - _PLACES} more" if len(there) > _PLACES else ""
        lines.append(_line("DONATED", "good", len(there), "in place", named, more))
    most = len(copied) if everything else MOST_OTHERS
    for one in copied[:most]:
        price = f"copies {bytes_text(one.copied_bytes)} a run"
        lines.append(_line("DONATED", "warn", 1, f"{one.output} to {one.input}", price, f": {one.reason}"))
    if copied[most:]:
        rest = sum(one.copied_bytes for one in copied[most:])
        lines.append(_others("DONATED", "warn", len(copied) - most, f"copy {bytes_text(rest)} a run"))
    return lines


def _recompute(found: RecomputeEntry, total: float, everything: bool) -> list[Line]:
    """What the backward pass saves and computes again, what it could compute again and does not, and the peak."""
    share = f" of {bytes_text(found.all_bytes)}"
    share += f" ({percent(found.bytes / found.all_bytes)})" if found.all_bytes else ""
    places = _places(dict.fromkeys(s.where for s in found.saved if s.where))
    lines = [_line("SAVED", "note", len(found.saved), "tensors", f"{bytes_text(found.bytes)}{share}", places)]
    again, kept = dict[str, _Group](), dict[tuple[str, str], _Group]()
    for one in found.again:
        again.setdefault(one.op, _Group()).add(one.bytes, one.seconds, one.where)
    for one in found.saved:
        kept.setdefault((one.op, one.reason), _Group()).add(one.bytes, one.seconds or 0.0, one.where)
    most = max(len(again), len(kept)) if everything else MOST_OTHERS // 2
    ranked = sorted(again.items(), key=lambda item: (-item[1].bytes, -item[1].seconds, item[0]))
    for op, group in ranked[:most]:
        price = f"saves {bytes_text(group.bytes)}, costs {time_text(group.seconds)}"
        price += f" ({percent(group.seconds / total)})" if total else ""
        lines.append(_line("AGAIN", "good", group.count, op, price, _places(group.places)))
    if ranked[most:]:
        rest = [group for _, group in ranked[most:]]
        price = f"save {bytes_text(sum(g.bytes for g in rest))}, cost {time_text(sum(g.seconds for g in rest))}"
        lines.append(_others("AGAIN", "good", sum(g.count for g in rest), price))
    for (op, reason), group in sorted(kept.items(), key=lambda item: (-item[1].bytes, item[0]))[:most]:
        price = f"would save {bytes_text(group.bytes)}, costs {time_text(group.seconds)}: {reason}"
        lines.append(_line("KEPT", "dim", group.count, op, price, _places(group.places)))
    where = f"   at {_short(found.peak_where)}" if found.peak_where else ""
    mark = Piece(f"{'PEAK':<{_MARK}}", "note")
    return [*lines, line(mark, f"       {bytes_text(found.peak_bytes)} held at once", where, hang=_MARK + 2)]


def _head(report: Record) -> Line:
    kernels = len(report.kernels)
    parts = [f"{report.nodes_before:,} nodes → {kernels:,} {'kernel' if kernels == 1 else 'kernels'}"]
    if report.repeats:
        parts.append(f"{report.blocks} repeated blocks, shown once")
    if report.arena_bytes is not None:
        parts.append(f"arena {bytes_text(report.arena_bytes)}")
    return line(Piece(f"{report.graph} on {report.target}", "strong"), "   ", "   ".join(parts), hang=2)


def _times(report: Record) -> Line:
    """Predicted and measured time, and how near to the limit of the machine the better known of them is."""
    predicted, measured = report.predicted_seconds, report.measured
    ops = {kernel.op for kernel in report.kernels}
    if measured is None:
        near = f"   {of_roofline(report.floor_seconds / predicted, ops=ops)}" if predicted else ""
        return line("predicted ", Piece(time_text(predicted), "strong"), near, hang=2)
    spread = f" (median of {measured.runs}, ±{time_text(measured.spread)})"
    return line(
        f"predicted {time_text(predicted)}   measured ",
        Piece(time_text(measured.seconds), "strong"),
        f"{spread}   {of_roofline(measured.roofline, ops=ops)}",
        hang=2,
    )


def _blocks(report: Record, everything: bool) -> list[Line]:
    """Every run of equal blocks: how many, their share of the time, and the kernels of one."""
    kernels = {k.name: k for k in report.kernels}
    took = _took(report)
    total = _total(report)
    most = len(report.repeats) if everything else MOST_OTHERS
    ranked = sorted(report.repeats, key=lambda r: -sum(took.get(name, 0.0) for copy in r.kernels for name in copy))
    lines: list[Line] = []
    for repeat in ranked[:most]:
        seconds = sum(took.get(name, 0.0) for copy in repeat.kernels for name in copy)
        block = repeat.kernels[0]
        ops = ", ".join(kernels[name].title for name in block[:_MOST_OPS])
        more = f" and {len(block) - _MOST_OPS} more" if len(block) > _MOST_OPS else ""
        price = f"{time_text(seconds):>9} ({percent(seconds / total)})" if total else ""
        lines.append(_line("BLOCK", "note", repeat.count, f"{len(block)} kernels", price, f"   {ops}{more}"))
    rest = ranked[most:]
    if rest:
        lines.append(_others("BLOCK", "note", sum(r.count for r in rest), ""))
    return lines


def _took(report: Record) -> dict[str, float]:
    """The time of each kernel of a run by name: measured, or else predicted."""
    if report.measured is not None:
        return {k.kernel: k.seconds for k in report.measured.kernels}
    return {k.name: k.seconds for k in report.kernels if k.phase == "run"}


def _total(report: Record) -> float:
    """The time that shares are shares of."""
    return report.predicted_seconds if report.measured is None else report.measured.seconds


def _kernels(report: Record, everything: bool) -> list[Line]:
    """The kernels that take longest, by what was measured or else predicted; those of one op and type are one line.

    Which kernel serves an op is a matter of the machine: it is told where everything or what was measured is.
    """
    took, measured = _took(report), report.measured
    total = _total(report)
    told = everything or measured is not None
    groups: dict[tuple[str, str, bool], list[Kernel]] = {}
    for kernel in report.kernels:
        if kernel.name in took:
            op = served(kernel.title, kernel.form if told else "")
            groups.setdefault((op, kernel.type, kernel.on_host), []).append(kernel)
    spent = {key: sum(took[k.name] for k in kernels) for key, kernels in groups.items()}
    ranked = sorted(groups, key=lambda key: -spent[key])
    most = len(ranked) if everything else MOST_KERNELS
    lines: list[Line] = []
    for key in ranked[:most]:
        op, type, on_host = key
        seconds = spent[key]
        near = sum(k.floor_seconds for k in groups[key]) / seconds if seconds else 0.0
        where = ", on the host" if on_host else f", {of_roofline(near, ops=[op])}" if seconds else ""
        predicted = f", predicted {time_text(sum(k.seconds for k in groups[key]))}" if measured is not None else ""
        price = f"{time_text(seconds):>9} ({percent(seconds / total)})" if total else ""
        lines.append(_line("KERNEL", "note", len(groups[key]), op, price, f"{predicted}{where}   {short_type(type)}"))
        inside = dict.fromkeys(", ".join(k.inside[:_MOST_OPS]) for k in groups[key] if k.inside)
        lines += [line(" " * _MARK, Piece(f"inside: {told}", "dim"), hang=_MARK + 2) for told in inside]
    rest = ranked[most:]
    if rest and total:
        seconds = sum(spent[key] for key in rest)
        count = sum(len(groups[key]) for key in rest)
        lines.append(_others("KERNEL", "note", count, f"{time_text(seconds):>9}", seconds / total))
    deciding = [key for key in ranked[:_MOST_DECIDING] if total and spent[key] >= _DECIDES * total and not key[2]]
    deciding = [key for key in deciding if not any(k.inside for k in groups[key])]
    lines += _bounds([(key[0], spent[key] / total, groups[key]) for key in deciding])
    if measured is not None:
        over = measured.overhead_seconds
        beside = f"{'':{_MARK}}{'beside kernels':<29} {time_text(over):>9} ({percent(over / measured.seconds)})"
        lines.append(line(beside, hang=_MARK))
    return lines


def _bounds(deciding: Sequence[tuple[str, float, Sequence[Kernel]]]) -> list[Line]:
    """What bounds the kernels that decide the time, and what would change it."""
    told: dict[str, list[tuple[str, float]]] = {}
    for title, share, kernels in deciding:
        told.setdefault(_bound(title, kernels), []).append((title, share))
    lines: list[Line] = []
    for bound, some in told.items():
        names = ", ".join(dict.fromkeys(title for title, _ in some))
        head = (Piece(f"{'BOUND':<{_MARK}}", "note"), f"{percent(sum(share for _, share in some)):>4}   ")
        lines.append(line(*head, Piece(names, "strong"), f" {bound}", hang=_MARK + 2))
    return lines


def _bound(title: str, kernels: Sequence[Kernel]) -> str:
    seconds = sum(k.seconds for k in kernels)
    if seconds and sum(k.floor_seconds for k in kernels) < _FAR * seconds:
        return "by neither arithmetic nor memory: larger sizes would change it, or a kernel that suits these"
    if 2 * sum(k.seconds for k in kernels if k.bound == "arithmetic") > seconds:
        narrower = "" if "int8" in title else ", or less precision (--precision, --quantize)"
        return f"by arithmetic: less of it would change it{narrower}"
    return "by memory: smaller tensors would change it, or one kernel with what hands them over"


def short_type(text: str) -> str:
    """Types in a text, with sizes that are long expressions left out."""
    return _TYPE.sub(_without_long_sizes, text)


def _without_long_sizes(found: re.Match[str]) -> str:
    if len(found[0]) <= _LONGEST_TYPE:
        return found[0]
    sizes = [size.strip() if len(size.strip()) <= _LONGEST_SIZE else "…" for size in _SIZE.findall(found[2])]
    return f"{found[1]}[{', '.join(sizes)}]"


_TYPE = re.compile(r"\b([a-z]\w*)\[([^\[\]]+)\]")
_SIZE = re.compile(r"(?:[^,()\s]|\s(?=[^,])|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))+")
_LONGEST_TYPE = 48
_LONGEST_SIZE = 16
_MOST_DECIDING = 3
_DECIDES = 0.1
"""The share of the time from which on a kind of kernel is said to decide it."""
_FAR = 0.3
"""The share of the roofline below which neither arithmetic nor memory is what bounds a kernel."""


def _fused(entries: Iterable[FusedEntry], everything: bool) -> list[Line]:
    groups: dict[str, _Group] = {}
    for entry in entries:
        # The last node is the result; the first may be shared with other kernels.
        where = next((n.where for n in reversed(entry.nodes) if n.where), "")
        groups.setdefault(entry.rule, _Group()).add(entry.bytes_saved, entry.seconds_saved, where)
    ranked = sorted(groups.items(), key=lambda item: (-item[1].bytes, item[0]))
    most = len(ranked) if everything else MOST_FUSED
    lines = [
        _line("FUSED", "good", g.count, rule, f"saves {bytes_text(g.bytes):>9} a run", _places(g.places))
        for rule, g in ranked[:most]
    ]
    rest = [g for _, g in ranked[most:]]
    if rest:
        saved = f"save  {bytes_text(sum(g.bytes for g in rest)):>9} a run"
        lines.append(_others("FUSED", "good", sum(g.count for g in rest), saved))
    return lines


def _missed(entries: Iterable[MissedEntry], total: float, everything: bool) -> list[Line]:
    groups: dict[tuple[str, str, str], _Group] = {}
    hints: dict[tuple[str, str, str], dict[str, float]] = {}
    alike: dict[tuple[str, str, str], list[MissedEntry]] = {}
    for entry in entries:
        key = (entry.rule, entry.reason, without_numbers(entry.message))
        where = entry.node.where or str(entry.node)
        groups.setdefault(key, _Group()).add(entry.bytes, entry.seconds, where, entry.message)
        alike.setdefault(key, []).append(entry)
        if entry.hint:
            told = hints.setdefault(key, {})
            told[entry.hint] = told.get(entry.hint, 0.0) + entry.gain_seconds
    ranked = sorted(groups.items(), key=lambda item: (-item[1].seconds, item[0]))
    most = len(ranked) if everything else MOST_MISSED
    lines: list[Line] = []
    for key, group in ranked[:most]:
        rule, reason, _ = key
        share = f" ({percent(group.seconds / total)})" if total > 0 else ""
        price = f"costs {time_text(group.seconds)}{share}" if group.seconds else "would not pay"
        lines.append(_line("MISSED", "warn", group.count, rule, price, _places(group.places)))
        message = short_type(", ".join(fold_names(group.messages)))
        lines.append(line(" " * _MARK, Piece(reason, "strong"), f": {message}", hang=_MARK + 2))
        lines += [
            line(" " * _MARK, Piece(f"hint: {hint} (gains {time_text(gain)})", "note"), hang=_MARK + 2)
            for hint, gain in list(hints.get(key, {}).items())[:_PLACES]
        ]
        told = ", ".join(f"{label} {value}" for label, value in facts(alike[key])) if everything else ""
        lines += [line(" " * _MARK, Piece(told, "dim"), hang=_MARK + 2)] if told else []
    rest = [g for _, g in ranked[most:]]
    if rest:
        seconds = sum(g.seconds for g in rest)
        price = f"cost {time_text(seconds)}" if seconds else "would not pay"
        share = seconds / total if total > 0 and seconds else None
        lines.append(_others("MISSED", "warn", sum(g.count for g in rest), price, share))
    return lines


def _near(entries: Iterable[MissedEntry]) -> list[Line]:
    """Patterns that the model does not have, but for one op."""
    groups: dict[tuple[str, str], _Group] = {}
    for entry in entries:
        groups.setdefault((entry.rule, entry.message), _Group()).add(0, 0.0, entry.node.where or str(entry.node))
    return [
        _line("NEAR", "dim", group.count, rule, message, _places(group.places))
        for (rule, message), group in sorted(groups.items())
    ]


def _stopped(report: Record) -> list[Line]:
    """Searches that a budget ended."""
    groups: dict[tuple[str, str, str], _Group] = {}
    for entry in report.stopped:
        groups.setdefault((entry.search, entry.phase, entry.message), _Group()).add(0, 0.0, "")
    return [
        _line("STOPPED", "bad", group.count, search, f"{message} in phase {phase}")
        for (search, phase, message), group in groups.items()
    ]


def _on_host(report: Record, everything: bool) -> list[Line]:
    """What runs as NumPy, its share of the time where it was measured, and what a mistake of ours makes slower."""
    groups: dict[str, _Group] = {}
    for kernel in report.kernels:
        if kernel.on_host:
            where = next((n.where for n in reversed(kernel.works_for) if n.where), "")
            group = groups.setdefault(kernel.op, _Group())
            group.add(kernel.bytes, kernel.seconds, where)
            group.messages.update(dict.fromkeys(kernel.lacks))
    measured = report.measured
    took: dict[str, float] = {}
    for kernel in measured.kernels if measured is not None else ():
        took[kernel.op] = took.get(kernel.op, 0.0) + kernel.seconds * kernel.on_host
    ranked = sorted(groups.items(), key=lambda item: (-took.get(item[0], 0.0), item[0]))
    most = len(ranked) if everything else MOST_OTHERS
    raised = [row for row in report.dispatch if " raised " in row.reason]
    reasons = {row.op: row.reason for row in raised if row.outcome == "host"}
    lines = [_line("RAISED", "warn", row.count, row.op, row.reason) for row in raised if row.outcome == "native"]
    for op, group in ranked[:most]:
        why = reasons.get(op, without_kernel(group.messages))
        share = f"takes {time_text(took[op])} ({percent(took[op] / measured.seconds)}), " if measured else ""
        lines.append(_line("HOST", "warn", group.count, op, f"{share}{why}", _places(group.places)))
    if ranked[most:]:
        lines.append(_others("HOST", "warn", sum(g.count for _, g in ranked[most:]), "have no compiled kernel"))
    return lines


def _apart(report: Record, everything: bool) -> list[Line]:
    """What kernels hand to each other in memory, by reason; one by one where everything is listed."""
    groups: dict[str, _Group] = {}
    for boundary in report.boundaries:
        groups.setdefault(boundary.reason, _Group()).add(boundary.bytes, boundary.seconds, "")
    ranked = sorted(groups.items(), key=lambda item: (-item[1].seconds, item[0]))
    most = len(ranked) if everything else MOST_OTHERS
    lines = [
        _line("APART", "dim", g.count, reason, f"moves {bytes_text(g.bytes):>9}, {time_text(g.seconds)}")
        for reason, g in ranked[:most]
    ]
    if everything:
        place = {k.name: next((n.where for n in reversed(k.works_for) if n.where), k.name) for k in report.kernels}
        lines += [
            line(
                " " * _MARK,
                Piece(f"{b.rule} {b.reason}" if b.rule else b.reason, "strong"),
                f"  {_short(place.get(b.producer, b.producer))} → {_short(place.get(b.consumer, b.consumer))}: "
                f"{b.message}, {bytes_text(b.bytes)}, {time_text(b.seconds)}",
                hang=_MARK + 2,
            )
            for b in sorted(report.boundaries, key=lambda b: -b.seconds)
        ]
    rest = [g for _, g in ranked[most:]]
    if rest:
        moved = f"move  {bytes_text(sum(g.bytes for g in rest)):>9}, {time_text(sum(g.seconds for g in rest))}"
        lines.append(_others("APART", "dim", sum(g.count for g in rest), moved))
    return lines


def _line(mark: str, tone: Tone, count: int, name: str, price: str, more: str = "") -> Line:
    """A line of the summary: what, how often, of which rule or op, its price, and where."""
    head = (Piece(f"{mark:<{_MARK}}", tone), f"{count:4} × ", Piece(f"{name:<22} ", "strong"))
    return line(*head, short_type(price), short_type(more), hang=_MARK + 2)


def _others(mark: str, tone: Tone, count: int, price: str, share: float | None = None) -> Line:
    """The line for all that matter less."""
    shared = "" if share is None else f" ({percent(share)})"
    head = (Piece(f"{mark:<{_MARK}}", tone), f"{count:4} others{'':18} ")
    return line(*head, f"{price}{shared}", Piece("   --all lists them", "dim"), hang=_MARK + 2)


def _places(places: Iterable[str]) -> str:
    found = [_short(place) for place in fold_names(places)]
    if not found:
        return ""
    return f"   at {', '.join(found[:_PLACES])}" + _and_more(found)


def _and_more(found: Sequence[str]) -> str:
    return f" and {len(found) - _PLACES} more" if len(found) > _PLACES else ""


def _short(text: str) -> str:
    """A place with its middle left out where it is long: what tells it apart stands at its end."""
    if len(text) <= _LONGEST_PLACE:
        return text
    return f"{text[: _LONGEST_PLACE // 3]}…{text[-(_LONGEST_PLACE * 2 // 3) :]}"


def served(op: str, form: str) -> str:
    """An op, and in brackets which of its kernels serves it."""
    return f"{op} ({form})" if form else op


def without_kernel(lacks: Iterable[str]) -> str:
    """What is said of a step on the host, and which of its elementwise steps are why."""
    steps = ", ".join(sorted({*lacks} - {""}))
    return f"has no compiled kernel: {steps}" if steps else "has no compiled kernel"


def of_roofline(share: float, *, ops: Iterable[str] = ()) -> str:
    """How much of the roofline was reached. Beyond it are convolutions by Winograd; else the figures are too low."""
    if share <= BEYOND:
        return f"{percent(min(share, 1.0))} of the roofline"
    if share <= WINOGRAD and any("conv" in op for op in ops):
        return f"{percent(share)} of the roofline of direct convolutions"
    return "beyond the roofline: the figures of this machine are too low (dovetail doctor --calibrate measures them)"
