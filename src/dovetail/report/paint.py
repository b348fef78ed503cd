"""Lines for a terminal: pieces of text with tones, wrapped to its width, coloured where it has colours.

Whatever stands in a piece is made plain first, so that no name of a model can give a terminal orders.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.sanitize import sanitize_line

Tone: TypeAlias = Literal["plain", "strong", "dim", "good", "warn", "bad", "note"]

_CODES: dict[Tone, str] = {"strong": "1", "dim": "2", "good": "32", "warn": "33", "bad": "1;31", "note": "36"}
_LEAST_WIDTH = 40
"""A terminal that is narrower wraps by itself."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a place for text can show. Without a width, lines are as long as they are."""

    width: int | None = None
    colour: bool = False


PLAIN = Look()


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text in one tone."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Line:
    """Pieces one behind the other; where they are wrapped, further rows begin at `hang`."""

    pieces: tuple[Piece, ...]
    hang: int = 0


def line(*pieces: Piece | str, hang: int = 0) -> Line:
    """A line of pieces; a bare text is in the plain tone."""
    return Line(tuple([Piece(p) if isinstance(p, str) else p for p in pieces]), hang)


def shown(lines: Iterable[Line], look: Look = PLAIN) -> str:
    """The lines as text for that place."""
    return "\n".join(row for one in lines for row in _rows(one, look))


def _rows(one: Line, look: Look) -> list[str]:
    pieces = [Piece(sanitize_line(p.text), p.tone) for p in one.pieces]
    whole = "".join(p.text for p in pieces)
    width = None if look.width is None else max(look.width, _LEAST_WIDTH)
    rows: list[str] = []
    for number, (begin, end) in enumerate(_cuts(whole, width, one.hang)):
        margin = " " * (one.hang if number else 0)
        rows.append(margin + "".join(_cut(pieces, begin, end, look.colour)))
    return rows


def _cuts(text: str, width: int | None, hang: int) -> list[tuple[int, int]]:
    """Where rows begin and end: at spaces, or inside a word that is longer than a row."""
    if width is None or len(text) <= width:
        return [(0, len(text))]
    found: list[tuple[int, int]] = []
    at, room = 0, width
    while len(text) - at > room:
        least = at + (hang if not found else 0)
        cut = text.rfind(" ", least + 1, at + room + 1)
        cut = cut if cut > least else at + room
        found.append((at, cut))
        at = cut + len(text[cut:]) - len(text[cut:].lstrip(" "))
        room = width - hang
    return [*found, (at, len(text))]


def _cut(pieces: Iterable[Piece], begin: int, end: int, colour: bool) -> Iterable[str]:
    """What lies between two places of the whole text, piece by piece."""
    at = 0
    for piece in pieces:
        text = piece.text[max(begin - at, 0) : max(end - at, 0)]
        at += len(piece.text)
        if text:
            code = _CODES.get(piece.tone) if colour and text.strip() else None
            yield text if code is None else f"\x1b[{code}m{text}\x1b[0m"


__all__ = ["PLAIN", "Line", "Look", "Piece", "Tone", "line", "shown"]
