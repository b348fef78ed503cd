"""Handlers of Python's own errors: none of them wraps an error of ours, which may be an OSError or a ValueError."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dovetail import errors
from tests.sources import FILES, SRC, parsed

OURS = frozenset(errors.__all__)
CAUGHT = frozenset({"OSError", "ValueError", "NotImplementedError", "MemoryError", "Exception"})


def names(handler: ast.ExceptHandler) -> set[str]:
    """The classes that a handler names."""
    if handler.type is None:
        return {"Exception"}
    return {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)}


def raised(body: list[ast.stmt]) -> Iterator[str]:
    """The errors of ours that these statements raise themselves."""
    for statement in body:
        for node in ast.walk(statement):
            match node:
                case ast.Raise(exc=ast.Call(func=ast.Name(id=name))) if name in OURS:
                    yield name
                case _:
                    pass


def bases(name: str) -> set[str]:
    return {kind.__name__ for kind in getattr(errors, name).__mro__}


def wrapping(tree: ast.Module) -> Iterator[int]:
    """The lines of handlers that catch an error of ours, which was raised just above, as one of Python's."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Try):
            continue
        for error in raised(node.body):
            for handler in node.handlers:
                met = names(handler) & bases(error)
                if met & OURS:
                    break
                if met & CAUGHT:
                    yield handler.lineno
                    break


def test_no_handler_wraps_an_error_of_ours() -> None:
    # Only files with a handler are parsed: most have none.
    handling = [path for path in FILES if "except " in path.read_text(encoding="utf-8")]
    assert len(handling) > 50
    found = [f"{path.relative_to(SRC)}:{line}" for path in handling for line in wrapping(parsed(path))]
    assert not found, "put `except DovetailError: raise` before\n" + "\n".join(found)


def test_such_a_handler_is_found() -> None:
    text = "try:\n    raise LoadError('x')\nexcept LoadError:\n    raise\nexcept OSError:\n    pass\n"
    assert not list(wrapping(ast.parse(text)))
    assert list(wrapping(ast.parse(text.replace("except LoadError:\n    raise\n", "")))) == [3]
