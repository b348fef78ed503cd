"""A model file, or a model in memory, as a graph."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from dovetail.errors import LoadError
from dovetail.frontends.onnx.fixed import Given
from dovetail.frontends.onnx.importer import Import
from dovetail.frontends.onnx.rule import Rule
from dovetail.frontends.onnx.rules import ALL
from dovetail.frontends.onnx.supported import Vocabulary
from dovetail.frontends.onnx.tensors import Tensors
from dovetail.ir.graph import Graph


def load_model(path: Path, *, fixed: Given | None = None, rules: Iterable[Rule] = ()) -> Graph:
    """The graph in an ONNX file. `fixed`: inputs and sizes that are the same in every run; `rules` go before ours."""
    try:
        model = onnx.ModelProto.FromString(path.read_bytes())
    except DecodeError as error:
        raise LoadError(f"{path} is not an ONNX model", hint="check what the file is") from error
    return import_model(model, folder=path.parent, fixed=fixed, rules=rules)


def import_model(
    model: onnx.ModelProto,
    *,
    folder: Path | None = None,
    fixed: Given | None = None,
    rules: Iterable[Rule] = (),
) -> Graph:
    """The graph of a model in memory; `folder` is where its external data lies."""
    vocabulary = Vocabulary(model, (*ALL, *rules))
    vocabulary.check(model.graph)
    return Import(model, Tensors(folder), vocabulary, fixed or {}).graph()
