"""Where the values of a node come from, in the words of the model and of the program that it was exported from."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import Any, cast

from dovetail.frontends.onnx.file.proto import messages
from dovetail.frontends.shared.messages import printable, text
from dovetail.ir.origin import Origin

_FRAMES = re.compile(r'File "([^"\n]{1,4096})", line (\d{1,9})')
"""Frames as Python prints them, the innermost last."""
_TRACED = re.compile(r"^([^\n(]{1,4096}\.py)\((\d{1,9})\): ", re.MULTILINE)
"""Frames as TorchScript's exporter writes them into a doc string, the innermost first."""
_PATH = re.compile(r"/(.+)/[A-Z]\w*")
"""A node named by TorchScript's exporter: the path of its module, then its operator."""
_LIBRARY = re.compile(r"[\\/](site|dist)-packages[\\/]")
_MOST_TRACE = 65536


def origins_of(node: messages.NodeProto) -> tuple[Origin, ...]:
    """The node by its name and operator; its module and source line where the exporter wrote them down."""
    given, op_type = node.name, node.op_type
    name = given or next((o for o in node.output if o), "")
    own = Origin("onnx", f"{printable(name)} ({op_type})" if name else op_type)
    props, doc = node.metadata_props, node.doc_string
    if not props and not doc and not given.startswith("/"):
        return (own,)
    found = [own]
    noted = {text(entry.key): text(entry.value) for entry in props}
    module = _module(given, noted)
    if module:
        found.append(Origin("module", printable(module)))
    line = _line(text(doc), noted)
    if line:
        found.append(Origin("source", printable(line)))
    return tuple(found)


def _module(name: str, noted: Mapping[str, str]) -> str:
    scopes = noted.get("pkg.torch.onnx.name_scopes", "")
    if scopes and len(scopes) <= _MOST_TRACE:
        try:
            listed: Any = ast.literal_eval(scopes)
        except (MemoryError, RecursionError, SyntaxError, ValueError):
            return ""
        # The last scope is the node itself.
        named = cast(list[object], listed) if isinstance(listed, list) else []
        return str(named[-2]) if len(named) > 1 else ""
    match = _PATH.fullmatch(name)
    return match.group(1).replace("/", ".") if match else ""


def _line(doc: str, noted: Mapping[str, str]) -> str:
    trace = noted.get("pkg.torch.onnx.stack_trace", "")[:_MOST_TRACE]
    frames = _FRAMES.findall(trace)[::-1] or _TRACED.findall(doc[:_MOST_TRACE])
    # A line of the model's own is worth more than one inside the framework.
    own = [f for f in frames if not _LIBRARY.search(f[0])] or frames
    return f"{PureWindowsPath(own[0][0]).name}:{own[0][1]}" if own else ""
