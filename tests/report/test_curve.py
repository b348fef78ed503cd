"""Curves of Braille dots."""

from __future__ import annotations

import math

from dovetail.report.curve import curve


def heights(rows: list[str]) -> list[int]:
    """The first row of each column of characters that has a dot."""
    plots = [row.partition("┤")[2] for row in rows]
    length = max(map(len, plots))
    padded = [plot.ljust(length, chr(0x2800)) for plot in plots]
    return [next((i for i, plot in enumerate(padded) if ord(plot[x]) > 0x2800), len(rows)) for x in range(length)]


def test_a_falling_curve_falls_over_the_whole_height() -> None:
    rows = curve([20 - i / 10 for i in range(61)], width=40, height=6)
    found = heights(rows)
    assert len(rows) == 6 and all(len(row) <= 40 for row in rows)
    assert found == sorted(found) and found[0] == 0 and found[-1] == 5
    assert rows[0].startswith("     20") and rows[-1].startswith("     14")


def test_large_ratios_are_drawn_on_a_logarithmic_scale() -> None:
    found = heights(curve([math.exp(-i) for i in range(32)], width=25, height=8))
    assert found == [x // 2 for x in range(16)]


def test_what_is_not_finite_is_left_out() -> None:
    assert curve([math.nan, math.inf], width=40) == [] and curve([], width=40) == []
    assert heights(curve([1.0, 1.0, math.nan, math.nan, 1.0, 1.0], width=40, height=4)) == [2, 4, 2]
