"""The page about targets says all that a target can say of itself."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from dovetail.errors import OptionError
from dovetail.passes.claims import Claims
from dovetail.targets import every_target
from dovetail.targets.target import Target

PAGE = Path(__file__).resolve().parents[2] / "docs" / "add-a-target.md"


@pytest.mark.parametrize("kind", [Target, Claims])
def test_the_page_has_every_field(kind: type) -> None:
    """In the order of the declaration, in a table that names the class."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"| field of `{kind.__name__}` |")
    table, _, _ = rest.partition("\n\n")
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [f.name for f in dataclasses.fields(kind)]


def test_notations_have_names_of_their_own() -> None:
    for target in every_target():
        if target.code is not None:
            names = [n.name for n in target.code.notations]
            assert names and len(set(names)) == len(names) and target.code.target == target.name
            assert [target.code.notation(name).name for name in names] == names
            with pytest.raises(OptionError, match=f"{target.name} does not show code as 'runes'"):
                target.code.notation("runes")
