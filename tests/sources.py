"""The package's own files, parsed once for all tests of a process that look at them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "dovetail"
FILES = sorted(SRC.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def import_nodes(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """The imports of a file, wherever they are: in functions and for type checking as well."""
    return tuple([node for node in _statements(parsed(path).body) if isinstance(node, ast.Import | ast.ImportFrom)])


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements and those inside them, without the many nodes of expressions, of which none is an import."""
    for node in body:
        yield node
        for inside in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, inside, ()))
