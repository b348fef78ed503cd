"""Text of strangers stays short and printable."""

from __future__ import annotations

import pytest

from dovetail.sanitize import LONGEST_LINE, MOST_LINES, sanitize, sanitize_line


def test_plain_text_stays_as_it_is() -> None:
    assert sanitize("one line\nand another: é 日本") == "one line\nand another: é 日本"


def test_control_characters_are_spelled_out() -> None:
    assert sanitize("a\x1b[2Jb\u202e") == "a\\x1b[2Jb\\u202e"
    assert sanitize_line("one\nline\r") == "one\\nline\\r"


@pytest.mark.slow
def test_long_lines_and_many_lines_are_cut() -> None:
    assert len(sanitize("x" * 10_000)) <= LONGEST_LINE
    assert len(sanitize("x\n" * 10_000).split("\n")) == MOST_LINES + 1
