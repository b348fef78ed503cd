"""A curve in a terminal: numbers over steps as dots of Braille, four rows and two columns a character."""

from __future__ import annotations

import math
from collections.abc import Sequence

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a character, by row and column."""
_BLANK = 0x2800
_LABEL = 9
"""Columns of the scale on the left."""


def curve(values: Sequence[float], *, width: int, height: int = 8) -> list[str]:
    """The rows of a plot of these numbers, the largest at the top; numbers that are not finite leave a gap.

    Each column shows the mean of its steps. The scale is logarithmic where all are above 0 and span a factor of 20.
    """
    columns = max(2 * (width - _LABEL), 2)
    means = _means(values, columns)
    known = [m for m in means if m is not None]
    if not known:
        return []
    as_log = min(known) > 0 and max(known) > 20 * min(known)
    place = math.log if as_log else float
    low, high = place(min(known)), place(max(known))
    rows = 4 * height
    cells = [[0] * ((len(means) + 1) // 2) for _ in range(height)]
    before: int | None = None
    for x, mean in enumerate(means):
        if mean is None:
            before = None
            continue
        y = round((high - place(mean)) / (high - low) * (rows - 1)) if high > low else rows // 2
        for at in range(*_between(before, y)):
            cells[at // 4][x // 2] |= _DOTS[at % 4][x % 2]
        before = y
    back = math.exp if as_log else float
    drawn: list[str] = []
    for number, row in enumerate(cells):
        share = (4 * number + 1.5) / (rows - 1) if 0 < number < height - 1 else float(number > 0)
        told = f"{back(high - share * (high - low)):.3g}" if number % 2 == 0 or number == height - 1 else ""
        drawn.append(f"{told:>{_LABEL - 2}} ┤" + "".join(chr(_BLANK | bits) for bits in row).rstrip(chr(_BLANK)))
    return drawn


def _between(before: int | None, y: int) -> tuple[int, int]:
    """The rows of a column, so that steep pieces of the curve have no gaps."""
    if before is None or abs(before - y) <= 1:
        return y, y + 1
    return (before + 1, y + 1) if y > before else (y, before)


def _means(values: Sequence[float], columns: int) -> list[float | None]:
    count = min(columns, len(values))
    found: list[float | None] = []
    for i in range(count):
        part = [v for v in values[i * len(values) // count : (i + 1) * len(values) // count] if math.isfinite(v)]
        found.append(sum(part) / len(part) if part else None)
    return found


__all__ = ["curve"]
