"""Messages stay short and printable, whatever a model is called."""

from __future__ import annotations

import pytest

from dovetail.errors import LoadError
from dovetail.frontends.shared.messages import printable, sanitized_errors


def test_long_names_are_cut() -> None:
    assert len(printable("x" * 10_000)) < 150 and printable("x") == "x"


def test_errors_are_made_plain_on_their_way() -> None:
    with pytest.raises(LoadError) as caught, sanitized_errors():
        raise LoadError("\x07" + "x" * 10_000, hint="\x07", where="\x07")
    assert str(caught.value).replace("\n", " ").isprintable() and len(str(caught.value)) < 600


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_running_out_is_a_typed_error(error: type[Exception]) -> None:
    with pytest.raises(LoadError, match="importing this model takes"), sanitized_errors():
        raise error
