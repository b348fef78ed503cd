"""What training steps save and compute again: `python benchmarks/training_memory.py [NETWORK …] [--steps N]`.

For each network: the bytes that the backward pass reads of the forward pass and the planned memory, saving everything,
as chosen and within budgets, and the processor time of a step on one thread, all programs in turns. Budgets are parts
of what saving everything plans: `--budgets 0.75 0.5`. `--steps 0` plans alone; `--least` adds the smallest peak.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dovetail import Graph
from dovetail.errors import BudgetError
from dovetail.ir.dtype import i64
from dovetail.runtime.compile import compilation
from dovetail.runtime.request import make_request
from dovetail.train import AdamW, Trainer
from dovetail.train.step import step_graph
from tests.train.networks import NETWORKS

ALL: dict[str, Any] = {"without": ["recompute"]}


def drawn(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {str(v.attrs["name"]): (v, tuple(int(str(s)) for s in v.shape)) for v in graph.inputs}
    return {
        name: rng.integers(0, 10, shape) if v.dtype is i64 else rng.normal(size=shape).astype(np.float32)
        for name, (v, shape) in shapes.items()
    }


def kinds_of(step: Graph, shares: list[float], least: bool) -> dict[str, dict[str, Any]]:
    """The options of each program: saving everything, as chosen, and within parts of what everything takes."""
    everything = int(str(compilation(step, make_request(**ALL)).plan.arena_size))
    found: dict[str, dict[str, Any]] = {"everything": ALL, "chosen": {}}
    found |= {f"within {share:g}": {"memory": f"{int(share * everything)}B"} for share in shares}
    return found | ({"least": {"memory": "least"}} if least else {})


def planned(step: Graph, kinds: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What is saved and planned; the kinds that there is a plan for."""
    served: dict[str, dict[str, Any]] = {}
    for name, options in kinds.items():
        began = time.process_time()
        try:
            made = compilation(step, make_request(**options))
        except BudgetError as error:
            print(f"  {name:12} {error}", flush=True)
            continue
        lowered = time.process_time() - began
        found = made.report().recompute
        saved = "" if found is None else f"saved {found.bytes / 1e6:6.1f} of {found.all_bytes / 1e6:.1f} MB, "
        arena = float(str(made.plan.arena_size)) / 1e6
        predicted = f"predicted {1e3 * made.report().predicted_seconds:.1f} ms"
        print(f"  {name:12} {saved}planned {arena:6.1f} MB, {predicted}, lowered in {lowered:.2f} s", flush=True)
        served[name] = options
    return served


def measured(graph: Graph, kinds: dict[str, dict[str, Any]], steps: int) -> None:
    """Processor time of steps in turns, as ratios to saving everything."""
    batch = drawn(graph)
    trainers = {name: Trainer(graph, optimizer=AdamW(), threads=1, **options) for name, options in kinds.items()}
    took: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(steps + 1):
        for name, trainer in trainers.items():
            began = time.process_time()
            trainer.step(batch)
            took[name].append(time.process_time() - began)
    for name, some in took.items():
        ratio = np.median(np.array(some[1:]) / np.array(took["everything"][1:]))
        print(f"  {name:12} a step takes {1e3 * np.median(some[1:]):.1f} ms, {ratio:.4f} of everything ({steps} steps)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--steps", type=int, default=11)
    parser.add_argument("--budgets", type=float, nargs="*", default=[], help="parts of what saving everything plans")
    parser.add_argument("--least", action="store_true")
    args = parser.parse_args()
    for name in args.networks:
        print(name, flush=True)
        graph = NETWORKS[name]()
        step = step_graph(graph, AdamW(), loss="loss").graph
        kinds = planned(step, kinds_of(step, args.budgets, args.least))
        if args.steps:
            measured(graph, kinds, args.steps)


if __name__ == "__main__":
    main()
