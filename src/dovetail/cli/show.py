"""`dovetail show`: the graph as text at a stage of its way to a plan."""

from __future__ import annotations

import argparse
from typing import Literal, cast, get_args

from dovetail.cli.command import Answer, Argument, Command
from dovetail.cli.options import COMPILING, compiled
from dovetail.derive.rules import rules
from dovetail.ir.text import print_graph
from dovetail.passes.pipeline import StageName, vocabulary, worthwhile
from dovetail.plan.text import print_plan
from dovetail.runtime.compile import Compilation

Shown = Literal[StageName, "lir", "rules", "egglog"]


def run(args: argparse.Namespace) -> Answer:
    return Answer(text_of(compiled(args), args.stage))


def text_of(made: Compilation, stage: Shown) -> str:
    """A stage as text. Graphs and plans read back; what is for egglog runs there."""
    match stage:
        case "lir":
            return print_plan(made.plan)
        case "rules":
            return "\n\n".join(map(str, rules(worthwhile(made.setup))))
        case "egglog":
            from dovetail.egraph.egglog.text import program_text  # no other stage needs egglog's text

            return program_text(made.lowered.stage("canonical").settled(), vocabulary(made.setup))
        case _:
            return print_graph(made.lowered.stage(stage))


COMMAND = Command(
    "show",
    "Print the graph as text at a stage of its way to a plan.",
    (
        *COMPILING,
        Argument(
            "--stage",
            "hir: as it came; mir: blocks spelled out, the nodes that reports name; canonical: in normal form; fused; "
            "legal: as the target runs it; lir: with its plan; rules: the rewrites that are looked for; egglog: rules "
            "and graph as a program for egglog (fused)",
            {"choices": cast("tuple[str, ...]", get_args(Shown)), "default": "fused"},
        ),
    ),
    run,
)
