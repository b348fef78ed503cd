"""`dovetail bench`: dovetail beside its peers, interleaved in one run."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.options import JSON
from dovetail.errors import OptionError
from dovetail.targets.cpu.crew import available_threads

if TYPE_CHECKING:
    from dovetail.bench.measure import Result

_HOW = """Median of interleaved runs, in ms; ± is half of what lies between the quartiles. First is preparing the model
and running it once. ratio is the best peer's time over ours, limit our share of the machine's own peak: multiply-adds
at the rate of a loop that does nothing else, or the weights read once from main memory, whichever takes longer."""


def run(args: argparse.Namespace) -> Answer:
    # Workloads are ONNX models, and the package takes its time; only this command needs it.
    from dovetail.bench.measure import bench
    from dovetail.bench.peers import PEERS
    from dovetail.bench.workloads import WORKLOADS

    threads = sorted(set(args.threads or (1, available_threads())))
    if any(count < 1 for count in threads) or args.seconds <= 0:
        raise OptionError("a bench of no threads or no time", hint="--threads 1 2 --seconds 3")
    peers = [p for p in PEERS if p.is_here]
    results = [bench(name, count, peers, args.seconds) for name in args.workload or WORKLOADS for count in threads]
    if args.json:
        return Answer(json.dumps({"schema_version": SCHEMA_VERSION, "results": [_dict(r) for r in results]}, indent=2))
    lines = [line for result in results for line in _table(result)]
    absent = [p.name for p in PEERS if not p.is_here]
    return Answer("\n".join([*lines, _HOW, *([f"not installed: {', '.join(absent)}"] if absent else []),
                             *(r.line for r in results)]))  # fmt: skip


def _table(result: Result) -> list[str]:
    lines = [f"{result.workload}, {result.threads} thread{'s' if result.threads > 1 else ''}"]
    for timed in result.timed:
        lines.append(
            f"  {timed.peer:24}{timed.median * 1e3:10.3f} ± {timed.spread * 100:3.0f} %"
            f"   first {timed.first:6.2f} s   deviation {timed.deviation:.1e}"
        )
    return [*lines, *(f"  {name:24}refused: {why}" for name, why in result.refused.items()), ""]


def _dict(result: Result) -> dict[str, Any]:
    return {
        **{k: v for k, v in asdict(result).items() if k != "timed"},
        "ratio": result.ratio,
        "peers": [
            {"peer": t.peer, "median": t.median, "spread": t.spread, "first": t.first, "deviation": t.deviation}
            for t in result.timed
        ],
    }


COMMAND = Command(
    "bench",
    "measure dovetail beside its peers, interleaved in one run",
    (
        Argument("workload", "which to measure; all without any", {"nargs": "*", "metavar": "WORKLOAD"}),
        Argument(
            "--threads",
            "a number of threads; 1 and all without any; may be given several times",
            {"type": int, "action": "append", "metavar": "N"},
        ),
        Argument("--seconds", "time for each peer and workload (3)", {"type": float, "default": 3.0, "metavar": "S"}),
        JSON,
    ),
    run,
)
