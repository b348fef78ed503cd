"""Where a node comes from in the user's program: the path of its module, its file and line."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from dovetail.ir.origin import Origin

_FRAME = re.compile(r'File "([^"\n]{1,4096})", line (\d{1,9}), in (\w+)')
_LIBRARY = re.compile(r"[\\/](site|dist)-packages[\\/]torch[\\/]")
"""Lines inside torch say less than the line that called it."""


def origins_of(node: Any) -> tuple[Origin, ...]:
    """The module by its path, and the innermost line of the model's own code."""
    path, kind = _module(node)
    line = _line(node, kind)
    found: list[Origin] = []
    if path:
        found.append(Origin("module", path))
    if line:
        found.append(Origin("source", line))
    return tuple(found)


def describe(node: Any) -> str:
    """The place of a node for messages."""
    path, kind = _module(node)
    line = _line(node, kind)
    return ", ".join(part for part in (line, path) if part) or str(node.name)


def _module(node: Any) -> tuple[str, str]:
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    if not stack:
        return "", ""
    path, kind = list(stack.values())[-1]
    name = kind if isinstance(kind, str) else getattr(kind, "__qualname__", "")
    return _readable(str(path)), str(name).rpartition(".")[2]


def _readable(path: str) -> str:
    """The path of a module as its owner writes it; torch spells slices and members of lists out."""
    short = re.sub(r"\.slice\([^)]*\)", "", re.sub(r"^L\['\w+'\]", "", path).lstrip("."))
    return re.sub(r"\._modules\['?([^'\]]*)'?\]", r".\1", short)


def _line(node: Any, kind: str) -> str:
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [f for f in frames if not _LIBRARY.search(f[0])] or frames
    if not own:
        return ""
    file, line, function = own[-1]
    return (
        f"{PurePath(file).name}:{line} in {kind}.{function}" if kind else f"{PurePath(file).name}:{line} in {function}"
    )
