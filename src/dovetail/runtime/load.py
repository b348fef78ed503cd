"""Graphs from files: ONNX models and torch's programs by their name, text and serialised forms by their first bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard, cast

from dovetail.declare.fused import FusedOp
from dovetail.errors import DovetailError, LoadError, OptionError, ParseError
from dovetail.ir import serial
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.serial_table import MAGIC
from dovetail.ir.text import parse_graph
from dovetail.progress import phase
from dovetail.runtime.in_memory import graph_in_memory
from dovetail.runtime.vocabulary import vocabulary
from dovetail.sanitize import sanitize

MOST_TEXT_BYTES = 1 << 30
SAVED_PROGRAM = b"DOVEPROG"
"""How files of programs begin."""
_GGUF = b"GGUF"
_LANGUAGE = "dovetail.language.LanguageModel reads it, and so do dovetail chat, generate, serve and perplexity"


def parse(text: str, *, ops: Iterable[FusedOp[...]] = ()) -> Graph:
    """The graph that a text spells. `ops` are the user's own declared ops that it may use."""
    if not isinstance(text, cast(Any, str)):
        raise LoadError(f"a {text.__class__.__name__} where text is wanted", hint="pass the text form of a graph")
    return parse_graph(text, vocabulary(ops))


def save(graph: Any, path: str | os.PathLike[str]) -> None:
    """Write a graph and its arrays; the file is whole, or it is not there. What `compile` takes is read first."""
    serial.save(load(graph) if is_path(graph) else graph_in_memory(graph), path)


def is_path(given: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether it is the path of a file."""
    return isinstance(given, str | os.PathLike)


def _refuse_folder(file: Path, shown: str) -> None:
    """Say what a folder is where a file with a graph is expected."""
    if not file.is_dir():
        return
    if (file / "config.json").is_file():
        raise LoadError(f"{shown} is the folder of a checkpoint, a language model and no graph", hint=_LANGUAGE)
    raise LoadError(f"{shown} is not a file but a folder", hint="pass the file in it that has the graph")


def load(
    path: Any,
    *,
    ops: Iterable[FusedOp[...]] = (),
    fixed: Mapping[str, Array | int] | None = None,
    train: bool = False,
) -> Graph:
    """The graph in a file: an ONNX model, a program of torch (.pt2), StableHLO (.mlir), or a saved or printed graph.

    A function that JAX lowered or exported, and a program that torch exported, are taken as they are in memory.
    Bytes and an `onnx.ModelProto` are an ONNX model in memory, whose weights are all in it.

    `ops` are the user's own declared ops that a saved graph may use. `fixed` is what has one value in every run of an
    ONNX model: inputs as arrays, symbolic sizes as numbers. Models need it where that decides their structure. With
    `train`, arrays of a few floats in an ONNX model are parameters too, and not constants.
    """
    if not is_path(path):
        return graph_in_memory(path, fixed=fixed, train=train)
    file = Path(path)
    shown = sanitize(str(file))
    if "\0" in str(path):
        raise LoadError("a path with a NUL in it", hint="check the path")
    try:
        if not file.is_file():
            _refuse_folder(file, shown)
            found = "is not a file" if file.exists() else "does not exist"
            raise LoadError(f"{shown} {found}", hint="check the path")
        if file.suffix.lower() == ".onnx":
            from dovetail.frontends.onnx import load_model  # a fifth of a second, for those who need it

            return load_model(file, fixed=fixed, train=train)
        if file.suffix.lower() == ".pt2" and not fixed:
            from dovetail.frontends.torch.load import load_exported  # torch takes seconds, for those who need it

            return load_exported(str(file)).graph
        if file.suffix.lower() == ".mlir" and not fixed:
            from dovetail.frontends.jax.load import import_text  # JAX takes a second, for those who need it

            return import_text(file.read_text(encoding="utf-8"))
        if fixed:
            raise OptionError(f"{shown} is no ONNX model, and fixed is for these", hint="specialise the graph instead")
        with file.open("rb") as stream:
            start = stream.read(max(len(MAGIC), len(SAVED_PROGRAM)))
        if start.startswith(_GGUF):
            raise LoadError(f"{shown} is a GGUF file, a language model and no graph", hint=_LANGUAGE)
        if start == SAVED_PROGRAM:
            raise LoadError(f"{shown} is a saved program and no graph", hint="dovetail.Program.load(path) reads it")
        if start == MAGIC:
            with phase("read"):
                return serial.load(file, vocabulary(ops))
        if file.stat().st_size > MOST_TEXT_BYTES:
            raise LoadError(
                f"{shown} has {file.stat().st_size} bytes of text", hint="save large graphs with dovetail.save"
            )
        text = file.read_text(encoding="utf-8")
    except DovetailError:
        raise  # a LoadError is an OSError, too
    except UnicodeDecodeError as error:
        raise LoadError(f"{shown} is neither a saved graph nor UTF-8 text", hint="check what the file is") from error
    except OSError as error:
        raise LoadError(
            f"{shown} cannot be read: {error.strerror}", hint="check the path and its permissions"
        ) from error
    try:
        with phase("read"):
            return parse_graph(text, vocabulary(ops), file=file.name)
    except ParseError as error:
        error.where = f"{shown}, {error.where}"
        raise
