"""A run of training as one page for a browser: its loss curve, and what it was."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

_WIDE, _HIGH, _EDGE = 960, 320, 56


def training_page(title: str, losses: Sequence[float], rates: Sequence[float], facts: Mapping[str, str]) -> str:
    """The page; each fact is a row of its table."""
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in facts.items())
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style>"
        f"<h1>{html.escape(title)}</h1>{_plot('loss', losses, smooth=True)}{_plot('learning rate', rates)}"
        f"<table>{rows}</table></html>\n"
    )


_STYLE = (
    "body{font:15px system-ui;max-width:1000px;margin:2em auto;padding:0 1em;color-scheme:light dark}"
    "svg{width:100%;height:auto}th{text-align:left;padding-right:2em;font-weight:600}td,th{vertical-align:top}"
    "polyline{fill:none;stroke:#3b82f6;stroke-opacity:.35}polyline.mean{stroke-opacity:1;stroke-width:2}"
    "text{font-size:12px;fill:currentColor}line{stroke:currentColor;stroke-opacity:.15}"
)


def _plot(name: str, values: Sequence[float], *, smooth: bool = False) -> str:
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return ""
    low, high = min(known), max(known)
    parts: list[str] = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _EDGE / 2 + share * (_HIGH - _EDGE)
        number = high - share * (high - low)
        parts.append(f'<line x1="{_EDGE}" x2="{_WIDE}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="0" y="{y + 4:.1f}">{number:.4g}</text>')
    parts.append(f'<polyline points="{_points(values, low, high)}"/>')
    if smooth:
        parts.append(f'<polyline class="mean" points="{_points(_smoothed(values), low, high)}"/>')
    parts.append(f'<text x="{_EDGE}" y="{_HIGH - 4}">1</text>')
    parts.append(f'<text x="{_WIDE}" y="{_HIGH - 4}" text-anchor="end">{len(values)} steps</text>')
    return f'<h2>{html.escape(name)}</h2><svg viewBox="0 0 {_WIDE} {_HIGH}" role="img">{"".join(parts)}</svg>'


def _points(values: Sequence[float], low: float, high: float) -> str:
    across, down = max(len(values) - 1, 1), high - low or 1.0
    return " ".join(
        f"{_EDGE + i / across * (_WIDE - _EDGE):.1f},{_EDGE / 2 + (high - v) / down * (_HIGH - _EDGE):.1f}"
        for i, v in enumerate(values)
        if math.isfinite(v)
    )


def _smoothed(values: Sequence[float]) -> list[float]:
    """A running mean that forgets over a fiftieth of the run."""
    keep = 1 - 1 / max(len(values) / 50, 1.0)
    found: list[float] = []
    for v in values:
        before = found[-1] if found else v
        found.append(before * keep + v * (1 - keep) if math.isfinite(v) else before)
    return found


__all__ = ["training_page"]
