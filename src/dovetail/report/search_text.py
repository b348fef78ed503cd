"""The lines of the summary that tell what an e-graph chose from."""

from __future__ import annotations

from dovetail.report.paint import Line, Piece, line
from dovetail.report.search import SearchEntry

_HANG = 8


def search_lines(search: SearchEntry | None) -> list[Line]:
    """What was held, what it gained, and the time and the rules that it took."""
    if search is None:
        return []
    mark = Piece(f"{'SEARCH':<{_HANG}}", "note")
    fired = sum(search.fired.values())
    held = f"{search.nodes:,} nodes in {search.classes:,} classes, {fired:,} applications of {len(search.fired)} rules"
    costs = [
        f"{_micros(seconds)} {name}"
        for name, seconds in (
            ("as given", search.given_seconds),
            ("greedily", search.greedy_seconds),
            ("chosen", search.chosen_seconds),
        )
    ]
    less = f" ({100 * search.gain:.2g} % less)" if search.gain > 1e-6 else ""
    steps = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in search.seconds.items())
    phases = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in search.phases.items())
    ranked = sorted(search.fired.items(), key=lambda item: (-item[1], item[0]))
    rules = ", ".join(f"{count} × {name}" for name, count in ranked)
    told = (f"took {steps}", f"phases of rules: {phases}", f"rules: {rules}")
    return [
        line(mark, held, hang=_HANG),
        line(" " * _HANG, f"priced alike on every host: {', '.join(costs)}{less}", hang=_HANG),
        *(line(" " * _HANG, Piece(text, "dim"), hang=_HANG) for text in told),
    ]


def _micros(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:,.3f} s"
    return f"{seconds * 1e3:,.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
