"""How far the functions of a model unfold: counted over their calls, before any is written out."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.errors import LoadError
from dovetail.frontends.onnx.file.check import Key, Survey, Surveys
from dovetail.frontends.shared.messages import printable

MOST_UNFOLDED = 200_000
"""Nodes that functions may unfold to, and this many times more for each node that is written."""
UNFOLDED_BY_NODE = 20
DEEPEST_CALL = 32
"""How deep functions may call each other."""
_BYTES_A_NODE = 1 << 14
"""Constants of so many bytes count as one node more."""


def check_nesting(surveys: Surveys) -> None:
    """Refuse functions that call themselves, directly or not, and those that unfold to far more than is written."""
    functions = surveys.functions
    if not functions:
        return
    unfolded = _unfolded(functions)
    whole = surveys.graph
    total = _weight(whole) + sum(unfolded[key] * count for key, count in _calls(whole, functions))
    most = MOST_UNFOLDED + UNFOLDED_BY_NODE * sum(_weight(s) for s in (whole, *functions.values()))
    if total > most:
        raise LoadError(
            f"{_count(total)} nodes once functions are written out, from {len(functions)} functions",
            hint=f"up to {most:,} are; check how they nest",
        )


def _calls(survey: Survey, functions: Mapping[Key, Survey]) -> list[tuple[Key, int]]:
    return [(key, count) for key, count in survey.operators.items() if key in functions]


def _weight(survey: Survey) -> int:
    """The nodes of a survey; each call reads constants again, so that they count too."""
    return survey.operators.total() + survey.constant_bytes // _BYTES_A_NODE


def _count(number: int) -> str:
    return f"{number:,}" if number < 10**15 else f"about 10**{len(str(number)) - 1}"


def _unfolded(functions: Mapping[Key, Survey]) -> dict[Key, int]:
    """The nodes that each function unfolds to."""
    found: dict[Key, int] = {}
    depth: dict[Key, int] = {}
    for start in functions:
        path: dict[Key, None] = {}
        pending = [start]
        while pending:
            key = pending[-1]
            if key in found:
                pending.pop()
                continue
            calls = _calls(functions[key], functions)
            if key in path:
                path.popitem()
                pending.pop()
                found[key] = _weight(functions[key]) + sum(found[k] * count for k, count in calls)
                depth[key] = 1 + max((depth[k] for k, _ in calls), default=0)
                if depth[key] > DEEPEST_CALL:
                    raise LoadError(
                        f"functions nest deeper than {DEEPEST_CALL}, at {printable(key[1])!r}",
                        hint="write some of them out",
                    )
                continue
            path[key] = None
            for callee, _ in calls:
                if callee in path:
                    raise LoadError(
                        f"the function {printable(callee[1])!r} calls itself, through {printable(key[1])!r}",
                        hint="functions are written out where they are called, and this one has no end",
                    )
                if callee not in found:
                    pending.append(callee)
    return found
