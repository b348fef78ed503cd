"""Lines for a terminal: plain, wrapped, coloured."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.report.paint import Look, Piece, line, shown

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def test_without_a_terminal_a_line_is_its_text() -> None:
    assert shown([line("a ", Piece("b", "good")), line()]) == "a b\n"


def test_colours_surround_what_has_a_tone() -> None:
    assert shown([line(Piece("ok", "good"), " then")], Look(colour=True)) == "\x1b[32mok\x1b[0m then"


def test_long_lines_are_wrapped_at_spaces_under_their_hang() -> None:
    text = "FUSED   " + " ".join(f"layers.{i}" for i in range(10))
    rows = shown([line(text, hang=4)], Look(40)).split("\n")
    assert all(len(row) <= 40 for row in rows) and len(rows) == 3
    assert all(row.startswith("    layers.") for row in rows[1:])


@pytest.mark.exhaustive
@given(
    st.lists(st.tuples(st.text(max_size=90), st.sampled_from(["plain", "good", "dim"])), max_size=5),
    st.integers(1, 120),
    st.integers(0, 12),
)
def test_nothing_is_lost_nothing_is_wider_and_nothing_can_be_ordered(
    parts: list[tuple[str, str]], width: int, hang: int
) -> None:
    pieces = [Piece(text, tone) for text, tone in parts]  # pyright: ignore[reportArgumentType]  # sampled above
    coloured = shown([line(*pieces, hang=hang)], Look(width, colour=True))
    bare = ANSI.sub("", coloured)
    assert bare.replace("\n", "").isprintable()
    assert all(len(row) <= max(width, 40) for row in bare.split("\n"))
    whole = shown([line(*pieces)])
    assert re.sub(r"\s", "", bare) == re.sub(r"\s", "", whole)
    assert bare == shown([line(*pieces, hang=hang)], Look(width))
