"""A model file, or a model in memory, as a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx

from dovetail.frontends.onnx.file.check import check_model
from dovetail.frontends.onnx.file.nesting import check_nesting
from dovetail.frontends.onnx.file.read import read_apart
from dovetail.frontends.onnx.file.tensors import Tensors
from dovetail.frontends.onnx.importing.fixed import Given
from dovetail.frontends.onnx.importing.importer import Import
from dovetail.frontends.onnx.importing.rule import Rule
from dovetail.frontends.onnx.importing.supported import Vocabulary
from dovetail.frontends.onnx.rules import ALL
from dovetail.frontends.shared.messages import sanitized_errors
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.passes.known_sizes import settle_sizes
from dovetail.progress import phase


def load_model(path: Path, *, fixed: Given | None = None, rules: Iterable[Rule] = ()) -> Graph:
    """The graph in an ONNX file. `fixed`: inputs and sizes that are the same in every run; `rules` go before ours."""
    with sanitized_errors(), phase("read"):
        model, reading = read_apart(path)
    if reading is None:
        return import_model(model, folder=path.parent, fixed=fixed, rules=rules)
    graph = import_model(model, folder=path.parent, fixed=fixed, rules=rules, apart=reading.arrays)
    reading.finish()
    return graph


def import_model(
    model: onnx.ModelProto,
    *,
    folder: Path | None = None,
    fixed: Given | None = None,
    rules: Iterable[Rule] = (),
    apart: Mapping[str, Array] | None = None,
) -> Graph:
    """The graph of a model in memory; `folder` is where its external data lies.

    `apart` are initializers whose elements the model has not, by name.
    """
    with sanitized_errors(), phase("import"):
        surveys = check_model(model)
        check_nesting(surveys)
        vocabulary = Vocabulary(model, (*ALL, *rules))
        vocabulary.check(model.graph, surveys)
        return settle_sizes(Import(model, Tensors(folder, apart), vocabulary, fixed or {}).graph())
