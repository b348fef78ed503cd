"""`dovetail export`: a model as StableHLO text, or as a file of `jax.export`."""

from __future__ import annotations

import argparse

from dovetail.cli.command import Answer, Argument, Command
from dovetail.cli.options import FIXED, MODEL, SIZE, asked_graph
from dovetail.errors import OptionError
from dovetail.ir.whole_file import write_whole
from dovetail.runtime.compile import compilation, make_request

_PLATFORMS = "cpu,cuda,rocm,tpu"


def run(args: argparse.Namespace) -> Answer:
    is_text = args.stablehlo.endswith(".mlir")
    if is_text and args.platforms is not None:
        raise OptionError("--platforms with text", hint="leave it out, or name a file without .mlir")
    from dovetail.targets.xla.export import COMPOSED, UNFUSED, exported, stablehlo  # JAX is imported with it

    platforms = args.platforms or _PLATFORMS
    graph = asked_graph(args)
    if is_text:
        request = make_request(target=COMPOSED, without=UNFUSED, engine="greedy")
        content, what = stablehlo(compilation(graph, request).plan.graph).encode(), "StableHLO"
    else:
        graph = compilation(graph, make_request(target="xla")).plan.graph
        content, what = exported(graph, platforms.split(",")), f"jax.export for {platforms}"
    write_whole(args.stablehlo, [content])
    return Answer(f"{args.stablehlo}: {what}, {len(content):,} bytes")


COMMAND = Command(
    "export",
    "Write a model as StableHLO: a function of its parameters, then its inputs; needs JAX.",
    (
        MODEL,
        SIZE,
        FIXED,
        Argument(
            "--stablehlo",
            "the file: text where it ends in .mlir, otherwise one that jax.export.deserialize reads",
            {"metavar": "FILE", "required": True},
        ),
        Argument(
            "--platforms",
            f"the platforms of a file of jax.export ({_PLATFORMS})",
            {"metavar": "NAMES"},
        ),
    ),
    run,
)

__all__ = ["COMMAND"]
