"""Finds checks that check nothing: assertions that cannot fail, failures that are swallowed, tests without a check."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

_SWALLOWED = {"AssertionError", "Exception", "BaseException"}
_CHECKS = {"raises", "warns", "fail"}
"""Calls that fail by themselves, beside those that are named assert_… and check_…."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
_LOOKED_AT = (
    *(ast.Assert, ast.Call, ast.Try, ast.TryStar, ast.ExceptHandler, ast.With, ast.AsyncWith, ast.For, ast.AsyncFor),
    *(ast.While, ast.If, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module, ast.match_case),
)
"""Nodes that may be a fault or have blocks of statements."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that looks like a check and is none."""

    line: int
    what: str


def faults(tree: ast.Module, checking: set[str] | None = None) -> list[Fault]:
    """Every fault of a module; `checking` are the functions that check, those of the module itself if not given."""
    checking = checkers([tree]) if checking is None else checking
    return sorted(set(_all_faults(tree, checking)), key=lambda fault: fault.line)


def checkers(trees: Iterable[ast.Module], known: Iterable[str] = ()) -> set[str]:
    """The names of the functions that check something, by themselves or through one that does."""
    found = set(known)
    calls: dict[str, set[str]] = {}
    for tree in trees:
        for node in looked_at(tree):
            if isinstance(node, Function):
                if _has_check(node.body, found):
                    found.add(node.name)
                else:
                    calls.setdefault(node.name, set()).update(_calls(node.body))
    while more := {name for name, called in calls.items() if name not in found and not found.isdisjoint(called)}:
        found |= more
    return found


@cache
def looked_at(tree: ast.Module) -> tuple[ast.AST, ...]:
    """The nodes of a module that are looked at: few of all."""
    return tuple(node for node in ast.walk(tree) if isinstance(node, _LOOKED_AT))


def _all_faults(tree: ast.Module, checking: set[str]) -> Iterator[Fault]:
    for node in looked_at(tree):
        match node:
            case ast.Assert(test=test) if _always_true(test):
                yield Fault(node.lineno, "cannot fail")
            case ast.Try(handlers=handlers) if any(map(_swallows, handlers)) and _has_check(node.body, checking):
                yield Fault(node.lineno, "its failure is swallowed")
            case ast.With(items=items) if any(_suppresses(i) for i in items) and _has_check(node.body, checking):
                yield Fault(node.lineno, "its failure is swallowed")
            case ast.Call(args=[one, other, *_]) if _is_comparison(node) and _same(one, other):
                yield Fault(node.lineno, "compares a thing with itself")
            case ast.FunctionDef(name=name) if name.startswith("test_") and not _checks(node, checking):
                yield Fault(node.lineno, "has no check")
            case _:
                pass
        for block in _blocks(node):
            yield from _unreachable(block, checking)


def _always_true(test: ast.expr) -> bool:
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            return bool(items)
        case ast.Lambda() | ast.GeneratorExp() | ast.JoinedStr():
            return True
        case ast.UnaryOp(op=ast.Not(), operand=ast.Constant(value=value)):
            return not value
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(map(_always_true, values))
        case ast.BoolOp(op=ast.And(), values=values):
            return all(map(_always_true, values))
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() | ast.LtE() | ast.GtE()], comparators=[right]):
            return _same(left, right)
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, ast.Name(id="object")]):
            return True
        case _:
            return False


def _same(one: ast.expr, other: ast.expr) -> bool:
    """The same words; two calls may differ all the same, which is what a test of determinism asks."""
    called = any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(one))
    return not called and ast.dump(one) == ast.dump(other)


def _is_comparison(call: ast.Call) -> bool:
    name = _called(call)
    return name.startswith("assert_") or name == "near"


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _swallows(handler: ast.ExceptHandler) -> bool:
    listed = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    caught = [node.id for node in listed if isinstance(node, ast.Name)]
    quiet = not any(isinstance(node, ast.Raise | ast.Assert | ast.Call) for node in ast.walk(handler))
    return quiet and (handler.type is None or not _SWALLOWED.isdisjoint(caught))


def _suppresses(item: ast.withitem) -> bool:
    call = item.context_expr
    if not isinstance(call, ast.Call) or _called(call) != "suppress":
        return False
    return not _SWALLOWED.isdisjoint(node.id for node in call.args if isinstance(node, ast.Name))


def _checks(function: Function, checking: set[str]) -> bool:
    return _has_check(function.body, checking)


def _has_check(block: list[ast.stmt], checking: set[str]) -> bool:
    for node in (node for statement in block for node in ast.walk(statement)):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = _called(node)
            if name in checking or name in _CHECKS or name.startswith(("assert_", "check_")):
                return True
    return False


def _calls(block: list[ast.stmt]) -> set[str]:
    """The names of what is called, functions and methods alike."""
    return {_called(node) for statement in block for node in ast.walk(statement) if isinstance(node, ast.Call)}


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block  # pyright: ignore[reportUnknownVariableType]  # a body is a list of statements


def _unreachable(block: list[ast.stmt], checking: set[str]) -> Iterator[Fault]:
    for at, statement in enumerate(block):
        dead = isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break)
        if dead and _has_check(block[at + 1 :], checking):
            yield Fault(block[at + 1].lineno, "is never reached")
        if isinstance(statement, ast.If | ast.While) and _always_false(statement.test):
            yield Fault(statement.lineno, "is never reached")


def _always_false(test: ast.expr) -> bool:
    return isinstance(test, ast.Constant) and not test.value
