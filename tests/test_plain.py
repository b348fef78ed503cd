"""Text of strangers stays short and printable."""

from __future__ import annotations

from dovetail.plain import LONGEST_LINE, MOST_LINES, plain, plain_line


def test_plain_text_stays_as_it_is() -> None:
    assert plain("one line\nand another: é 日本") == "one line\nand another: é 日本"


def test_control_characters_are_spelled_out() -> None:
    assert plain("a\x1b[2Jb\u202e") == "a\\x1b[2Jb\\u202e"
    assert plain_line("one\nline\r") == "one\\nline\\r"


def test_long_lines_and_many_lines_are_cut() -> None:
    assert len(plain("x" * 10_000)) <= LONGEST_LINE
    assert len(plain("x\n" * 10_000).split("\n")) == MOST_LINES + 1
