"""The table of what is promised and proven: every test that it names exists, and nothing is left out."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from dovetail import library

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "coverage.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
TRAPS = range(1, 58)


def tables() -> dict[str, list[list[str]]]:
    """The rows of each table, by its heading, without the two lines at its top."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif line.startswith("|"):
            found.setdefault(heading, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return {name: rows[2:] for name, rows in found.items()}


@cache
def named_in(path: Path) -> set[str]:
    """The names of the tests of a file; none where there is no such file."""
    if not path.is_file():
        return set()
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_test_that_is_named_exists() -> None:
    named = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) > 200
    missing = [f"{path}::{name}" for path, name in named if name not in named_in(ROOT / path)]
    assert not missing, "\n".join(missing)


def test_every_row_names_a_test_or_says_that_it_is_not_built() -> None:
    for heading, rows in tables().items():
        for what, proof in rows:
            parts = proof.split("<br>")
            proven = all(NAMED.fullmatch(part) for part in parts)
            assert proven or proof == "not built yet", f"{heading}: {what}"
            assert len(set(parts)) == len(parts), f"{heading}: {what} names a test twice"


def test_every_op_of_the_library_is_in_the_first_table() -> None:
    listed = {name for what, _ in tables()["Fused ops"] for name in re.findall(r"`(\w+)`", what)}
    assert {op.name for op in library.ALL} | {group.name for group in library.GROUPS} == listed


def test_every_trap_is_listed_with_all_its_tests() -> None:
    rows = tables()["Traps"]
    assert [int(what.split(".")[0]) for what, _ in rows] == list(TRAPS)
    for number, (_, proof) in zip(TRAPS, rows, strict=True):
        wanted = {
            (str(path.relative_to(ROOT)), name)
            for path in (ROOT / "tests" / "traps").glob("test_*.py")
            for name in named_in(path)
            if name.startswith(f"test_trap_{number:02}_")
        }
        assert set(NAMED.findall(proof)) == wanted, f"trap {number}"
