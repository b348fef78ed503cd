"""What the commands that measure have in common: a program with inputs, and the figures of the machine."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dovetail.cli.arrays import Given, named_arrays
from dovetail.cli.command import Argument
from dovetail.cli.options import asked_graph, ways
from dovetail.cli.run import feeds_of
from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.models.weights import random_weights
from dovetail.runtime.compile import compile
from dovetail.runtime.program import Program

SEED = 0
_WARM_UP = 2
INPUT = Argument(
    "--input",
    "an input, as @file.npy, @file.npz:key or numbers; others are made up: floats from a normal distribution, "
    "integers 0 or 1; may be given several times",
    {"metavar": "NAME=VALUE", "action": "append", "default": []},
)
RUNS = Argument("--runs", "how many runs to measure (20)", {"metavar": "N", "type": int, "default": 20})
THREADS = Argument("--threads", "how many threads a run may use (all)", {"metavar": "N", "type": int, "default": 0})
MEASURING = (INPUT, RUNS, THREADS)
WHERE_MEASURED = tuple(replace(argument, needs="--measure", group="measuring") for argument in MEASURING)
"""For commands that measure if they are told to."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A program, and inputs to run it on."""

    program: Program
    feeds: Mapping[str, Array]


def measured_inputs(args: argparse.Namespace) -> dict[str, Given]:
    """The inputs that a command line gives to what is measured, once its numbers hold."""
    if args.runs < 1:
        raise OptionError(f"--runs {args.runs}", hint="measure one run at least")
    if args.threads < 0:
        raise OptionError(f"--threads {args.threads}", hint="use one thread at least, or 0 for all")
    return named_arrays("--input", args.input)


def ready(args: argparse.Namespace) -> Ready:
    """The model of a command line, compiled, with the inputs that it gives and made-up ones for the rest."""
    given = measured_inputs(args)
    return ready_graph(asked_graph(args), args, given)


def ready_graph(graph: Graph, args: argparse.Namespace, given: Mapping[str, Given]) -> Ready:
    """A graph compiled as a command line says, with the inputs given and made-up ones for the rest."""
    feeds = feeds_of(graph, given, SEED)
    params = None if graph.params else random_weights(graph, SEED)
    program = compile(graph, **ways(args), params=params, threads=args.threads)
    return Ready(program, feeds)


def medians(sides: Sequence[Ready], runs: int) -> list[float]:
    """What a run of each takes, in seconds: the median of many, all taking turns."""
    taken: list[list[float]] = [[] for _ in sides]
    for turn in range(runs + _WARM_UP):
        for side, seconds in zip(sides, taken, strict=True):
            feeds = side.program.undonated(side.feeds)
            started = time.perf_counter()
            side.program.run(feeds)
            if turn >= _WARM_UP:
                seconds.append(time.perf_counter() - started)
    return [statistics.median(seconds) for seconds in taken]


__all__ = [
    "INPUT",
    "MEASURING",
    "RUNS",
    "SEED",
    "THREADS",
    "WHERE_MEASURED",
    "Ready",
    "measured_inputs",
    "medians",
    "ready",
    "ready_graph",
]
