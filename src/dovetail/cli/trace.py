"""`dovetail trace`: a file with what happened when, for Perfetto or chrome://tracing."""

from __future__ import annotations

import argparse
import json
import time

from dovetail.cli.arrays import named_arrays
from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.measuring import INPUT, SEED, THREADS
from dovetail.cli.options import COMPILING, JSON, asked_graph, ways
from dovetail.cli.run import feeds_of
from dovetail.errors import OptionError
from dovetail.models.weights import random_weights
from dovetail.plan.marks import Mark
from dovetail.report.atomic_write import write_atomically
from dovetail.report.trace import Span, trace_of
from dovetail.runtime.compile import Compilation, compilation, make_request
from dovetail.runtime.program import Program


def run(args: argparse.Namespace) -> Answer:
    if args.runs < 1 or args.threads < 0:
        raise OptionError(f"--runs {args.runs} --threads {args.threads}", hint="trace one run at least, on a thread")
    given = named_arrays("--input", args.input)
    clock = [time.perf_counter_ns()]
    graph = asked_graph(args)
    feeds = feeds_of(graph, given, SEED)
    params = None if graph.params else random_weights(graph, SEED)
    clock.append(time.perf_counter_ns())
    request = make_request(**ways(args), threads=args.threads)
    made = compilation(graph, request)
    clock.append(time.perf_counter_ns())
    executable = request.target.compile(made.plan, request.settings)
    clock.append(time.perf_counter_ns())
    program = Program(made.plan, executable, report=made.report, params=params, any_size=request.target.any_size).bind(
        {}
    )
    clock.append(time.perf_counter_ns())
    runs: list[tuple[Span, list[Mark]]] = []
    # The first run wakes caches and threads; it is traced as well, under its own name.
    for number in range(args.runs + 1):
        begun = time.perf_counter_ns()
        marks = list(program.run_marked(program.undonated(feeds))[1])
        name = f"run {number}" if number else "first run"
        runs.append((Span(name, begun, time.perf_counter_ns()), marks))
    threads = 1 + max((work.thread for _, marks in runs for mark in marks for work in mark.work), default=0)
    text = trace_of(_phases(clock, made), runs, made.plan, made.report(), threads)
    place = write_atomically(args.out, text, "trace")
    events = len(json.loads(text)["traceEvents"])
    if args.json:
        return Answer(json.dumps({"schema_version": SCHEMA_VERSION, "file": str(place), "events": events}, indent=2))
    return Answer(f"{events} events of {len(runs)} runs are in {ascii(str(place))[1:-1]}: open it at ui.perfetto.dev")


def _phases(clock: list[int], made: Compilation) -> list[Span]:
    """Import, passes, plan, code and bind; the passes lie inside the compilation one behind the other."""
    names = ("import", "passes and plan", "codegen", "bind")
    spans = [Span(name, begin, end) for name, begin, end in zip(names, clock, clock[1:], strict=False)]
    at, end = clock[1], clock[2]
    for done in made.lowered.records:
        until = min(end, at + round(done.seconds * 1e9))
        spans.append(Span(done.name, at, until))
        at = until
    return [*spans, Span("plan", at, end)]


COMMAND = Command(
    "trace",
    "Compile and run a model, and write what happened when to a file that Perfetto opens.",
    (
        *COMPILING,
        INPUT,
        Argument("--runs", "how many runs to trace, after the first (3)", {"metavar": "N", "type": int, "default": 3}),
        THREADS,
        Argument("--out", "the file to write (trace.json)", {"metavar": "FILE", "default": "trace.json"}),
        JSON,
    ),
    run,
)
