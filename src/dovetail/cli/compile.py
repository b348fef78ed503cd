"""`dovetail compile`: a model as a program in a file, which runs where LLVM and onnx are not installed."""

from __future__ import annotations

import argparse
import os

from dovetail.cli.command import Answer, Argument, Command
from dovetail.cli.options import COMPILING, PRECISION, QUANTIZE, asked_graph, ways, with_weights
from dovetail.runtime.compile import compile
from dovetail.runtime.saved import SUFFIX


def run(args: argparse.Namespace) -> Answer:
    path = args.output or f"{os.path.splitext(os.path.basename(args.model))[0]}{SUFFIX}"
    program = compile(with_weights(asked_graph(args)), **ways(args))
    program.save(path, isa=args.isa)
    said = ", ".join(args.isa.split("+"))
    return Answer(
        f"{path}: {program.graph.name} for {said}, {os.path.getsize(path):,} bytes\n"
        f"  run it with dovetail.Program.load({path!r})"
    )


COMMAND = Command(
    "compile",
    "Write a model as one file of machine code, plan and packed weights, which loads without LLVM and onnx.",
    (
        *COMPILING,
        PRECISION,
        QUANTIZE,
        Argument("--output", f"the file (the model's name with {SUFFIX})", {"metavar": "FILE"}),
        Argument(
            "--isa",
            "the instructions that its code may use: native, avx512, avx2, sse, or several in one file, as in "
            "avx2+avx512, of which the loader takes the best that the processor has (native)",
            {"metavar": "NAMES", "default": "native"},
        ),
    ),
    run,
)

__all__ = ["COMMAND"]
