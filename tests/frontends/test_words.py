"""Messages stay short and printable, whatever a model is called."""

from __future__ import annotations

import pytest

from dovetail.errors import LoadError
from dovetail.frontends.words import LONGEST_LINE, MOST_LINES, plain, plain_errors, printable


def test_plain_text_stays_as_it_is() -> None:
    assert plain("one line\nand another: é 日本") == "one line\nand another: é 日本"


def test_control_characters_are_spelled_out() -> None:
    assert plain("a\x1b[2Jb\u202e") == "a\\x1b[2Jb\\u202e"


def test_long_lines_and_many_lines_are_cut() -> None:
    assert len(plain("x" * 10_000)) <= LONGEST_LINE
    assert len(plain("x\n" * 10_000).split("\n")) == MOST_LINES + 1
    assert len(printable("x" * 10_000)) < 150


def test_errors_are_made_plain_on_their_way() -> None:
    with pytest.raises(LoadError) as caught, plain_errors():
        raise LoadError("\x07" + "x" * 10_000, hint="\x07", where="\x07")
    assert str(caught.value).replace("\n", " ").isprintable() and len(str(caught.value)) < 600


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_running_out_is_a_typed_error(error: type[Exception]) -> None:
    with pytest.raises(LoadError, match="importing this model takes"), plain_errors():
        raise error
