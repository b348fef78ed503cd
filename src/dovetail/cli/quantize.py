"""`dovetail quantize`: what storing the weights of a model in 8 or 4 bits changes, matrix by matrix."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import get_args

from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.options import FIXED, JSON, MODEL, SIZE, asked_graph, with_weights
from dovetail.runtime.quantize import Quantize, QuantizeKind, quantized


def run(args: argparse.Namespace) -> Answer:
    how = Quantize(args.kind, args.keep_above, args.fail_above)
    _, told = quantized(with_weights(asked_graph(args)), how)
    if not args.json:
        return Answer(str(told))
    layers = [asdict(layer) for layer in told.layers]
    return Answer(json.dumps({"schema_version": SCHEMA_VERSION, "kind": how.kind, "layers": layers}, indent=2))


_ERROR = {"metavar": "ERROR", "type": float}

COMMAND = Command(
    "quantize",
    "Say what weights in 8 or 4 bits change: bytes and the error of each matrix.",
    (
        MODEL,
        Argument("--kind", "int8 or int4 (int8)", {"choices": get_args(QuantizeKind), "default": "int8"}),
        Argument("--keep-above", "keep matrices whose relative error is above this as they are", _ERROR),
        Argument("--fail-above", "fail if the relative error of a matrix is above this", _ERROR),
        SIZE,
        FIXED,
        JSON,
    ),
    run,
)
