"""A model file, or a model in memory, as a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from dovetail.errors import LoadError
from dovetail.frontends.onnx.file.check import check_model
from dovetail.frontends.onnx.file.nesting import check_nesting
from dovetail.frontends.onnx.file.order import in_order
from dovetail.frontends.onnx.file.proto import messages
from dovetail.frontends.onnx.file.read import read_apart, read_bytes
from dovetail.frontends.onnx.file.tensors import Tensors
from dovetail.frontends.onnx.importing.fixed import Given
from dovetail.frontends.onnx.importing.importer import Import
from dovetail.frontends.onnx.importing.rule import Rule
from dovetail.frontends.onnx.importing.supported import Vocabulary
from dovetail.frontends.onnx.rules import REGISTRY
from dovetail.frontends.shared.messages import sanitized_errors
from dovetail.ir.collector import collector_paused
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.passes.known_sizes import settle_sizes
from dovetail.progress import phase


def load_model(
    path: Path,
    *,
    fixed: Given | None = None,
    rules: Iterable[Rule] = (),
    free: frozenset[str] = frozenset(),
    train: bool = False,
) -> Graph:
    """The graph in an ONNX file. `fixed`: inputs and sizes that are the same in every run; `rules` go before ours.

    `free` names initializers that are also inputs and become inputs: each run passes them. With `train`, small arrays
    are parameters too.
    """
    rules = tuple(rules)
    with sanitized_errors(), phase("read"):
        seen = _stamp(path)
        model, reading = read_apart(path)
    apart = None if reading is None else reading.arrays
    graph = import_model(model, folder=path.parent, fixed=fixed, rules=rules, apart=apart, free=free, train=train)
    if reading is not None:
        reading.finish()

    def reread(more: Given, also: frozenset[str]) -> Graph:
        if _stamp(path) != seen:
            raise LoadError(f"{path} has changed since it was loaded", hint="compile it again")
        return load_model(path, fixed={**(fixed or {}), **more}, rules=rules, free=free | also, train=train)

    return replace(graph, reread=reread)


def load_bytes(content: bytes, *, fixed: Given | None = None, train: bool = False) -> Graph:
    """The graph of an ONNX model in memory, as the bytes of a file; for `fixed` and `train` see `load_model`."""
    with sanitized_errors(), phase("read"):
        model = read_bytes(content)
    return import_model(model, fixed=fixed, train=train)


def _stamp(path: Path) -> tuple[int, int] | None:
    """What tells two versions of a file apart."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def import_model(
    model: messages.ModelProto,
    *,
    folder: Path | None = None,
    fixed: Given | None = None,
    rules: Iterable[Rule] = (),
    apart: Mapping[str, Array] | None = None,
    free: frozenset[str] = frozenset(),
    train: bool = False,
) -> Graph:
    """The graph of a model in memory; `folder` holds its external data.

    `apart` are initializers whose elements the model has not, by name; for `free` and `train` see `load_model`.
    """
    rules = tuple(rules)
    with sanitized_errors(), phase("import"), collector_paused():
        model = in_order(model)
        surveys = check_model(model)
        check_nesting(surveys)
        vocabulary = Vocabulary(model, REGISTRY.of, rules)
        vocabulary.check(model.graph, surveys)
        graph = settle_sizes(Import(model, Tensors(folder, apart), vocabulary, fixed or {}, free, train).graph())

    def reread(more: Mapping[str, Array | int], also: frozenset[str]) -> Graph:
        known = {**(fixed or {}), **more}
        return import_model(model, folder=folder, fixed=known, rules=rules, apart=apart, free=free | also, train=train)

    return replace(graph, reread=reread)
