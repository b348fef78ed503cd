"""What training steps save and compute again: `python benchmarks/training_memory.py [NETWORK …] [--steps N]`.

For each network: the bytes that the backward pass reads of the forward pass and the planned memory, saving everything
and as chosen, and the processor time of a step on one thread, both programs in turns. `--steps 0` plans alone;
`--least` adds the smallest peak.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dovetail import Graph, Trainer
from dovetail.ir.dtype import i64
from dovetail.runtime.compile import compilation
from dovetail.runtime.request import make_request
from dovetail.train import AdamW
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


def planned(graph: Graph, least: bool) -> None:
    began = time.process_time()
    step = step_graph(graph, AdamW(), loss="loss").graph
    differentiated = time.process_time() - began
    began = time.process_time()
    made = compilation(step, make_request())
    lowered = time.process_time() - began
    found = made.report().recompute
    assert found is not None
    plans = {"chosen": made.plan, "everything": compilation(step, make_request(**ALL)).plan}
    if least:
        plans["least"] = compilation(step, make_request(memory="least")).plan
    arenas = ", ".join(f"{name} {float(str(plan.arena_size)) / 1e6:.1f} MB" for name, plan in plans.items())
    print(f"  saved: chosen {found.bytes / 1e6:.1f} MB of {found.all_bytes / 1e6:.1f} MB; planned: {arenas}")
    print(f"  differentiated in {differentiated:.2f} s, lowered and planned in {lowered:.2f} s")


def measured(graph: Graph, steps: int) -> None:
    batch = drawn(graph)
    kinds: dict[str, dict[str, Any]] = {"everything": ALL, "chosen": {}}
    trainers = {name: Trainer(graph, optimizer=AdamW(), threads=1, **options) for name, options in kinds.items()}
    took: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(steps + 1):
        for name, trainer in trainers.items():
            began = time.process_time()
            trainer.step(batch)
            took[name].append(time.process_time() - began)
    ratio = np.median(np.array(took["chosen"][1:]) / np.array(took["everything"][1:]))
    times = ", ".join(f"{name} {1e3 * np.median(some[1:]):.1f} ms" for name, some in took.items())
    print(f"  a step: {times}; chosen / everything {ratio:.4f} (median of {steps})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--steps", type=int, default=11)
    parser.add_argument("--least", action="store_true")
    args = parser.parse_args()
    for name in args.networks:
        print(name, flush=True)
        graph = NETWORKS[name]()
        planned(graph, args.least)
        if args.steps:
            measured(graph, args.steps)


if __name__ == "__main__":
    main()
