"""The whole pipeline, canonical form to plan and report: how long it takes, how that grows, and in how much memory.

Each size is measured in a process of its own, so that its peak memory is its own and nothing is warm from another.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from dovetail.models import LlamaShape, llama
from dovetail.runtime.compile import make_request

SMALL_LAYERS = 28
MANY = (10_000, 100_000)
LIMIT_SMALL_SECONDS = 0.5
LIMIT_LARGE_SECONDS = 25.0
LIMIT_LARGE_BYTES = 2_000_000_000
LIMIT_GROWTH = 12.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One size: nodes in MIR, seconds of each repeat by the wall clock and on the processor, the peak memory."""

    layers: int
    nodes: int
    kernels: int
    seconds: tuple[float, ...]
    busy: tuple[float, ...]
    parts: dict[str, float]
    """Seconds of each pass, of planning and of the report, in the repeat with the median time."""
    peak_bytes: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def shape(layers: int) -> LlamaShape:
    """Small tensors: what is measured is the compiler, and it looks at nodes, not at elements."""
    return LlamaShape(layers=layers, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=100)


def measure(layers: int, repeats: int) -> Measured:
    """Compile a graph several times. The first counts too: patterns are traced in it."""
    graph = llama(shape(layers), batch=1, seq=8)
    seconds: list[float] = []
    busy: list[float] = []
    parts: list[dict[str, float]] = []
    nodes = kernels = 0
    for _ in range(repeats):
        started, worked = time.perf_counter(), time.process_time()
        made = make_request(target="cpu").compilation(graph)
        planned = time.perf_counter()
        report = made.report()
        ended = time.perf_counter()
        busy.append(time.process_time() - worked)
        passes = {p.name: p.seconds for p in report.passes}
        rest = planned - started - sum(passes.values())
        seconds.append(ended - started)
        parts.append({**passes, "verify and plan": rest, "report": ended - planned})
        nodes, kernels = report.nodes_before, len(report.kernels)
        del made, report
    typical = sorted(range(repeats), key=lambda i: seconds[i])[repeats // 2]
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if platform.system() == "Darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return Measured(layers, nodes, kernels, tuple(seconds), tuple(busy), parts[typical], peak)


def in_child(layers: int, repeats: int) -> Measured:
    command = [sys.executable, __file__, "--layers", str(layers), "--repeats", str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Measured(**json.loads(done.stdout))


def show(measured: Measured) -> None:
    print(
        f"{measured.layers:6,} layers  {measured.nodes:8,} nodes  {measured.kernels:7,} kernels  "
        f"{measured.median:7.3f} s ({statistics.median(measured.busy):.3f} s busy)  {measured.median / measured.nodes * 1e6:5.0f} µs a node  "
        f"{measured.peak_bytes / 1e9:5.2f} GB"
    )


def compare(what: str, found: float, limit: float, unit: str) -> None:
    verdict = "within" if found <= limit else "ABOVE"
    print(f"  {what:<42} {found:8.2f} {unit:<2}  {verdict} the limit of {limit:g} {unit}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, help="measure this one size here and print it as JSON")
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    if args.layers is not None:
        print(json.dumps(asdict(measure(args.layers, args.repeats))))
        return
    small = in_child(SMALL_LAYERS, 7)
    per_layer = (small.nodes - in_child(1, 1).nodes) / (SMALL_LAYERS - 1)
    print("Llama-style decoder, target cpu; nodes are those of MIR, parameters and constants included")
    show(small)
    medium, large = (in_child(round(nodes / per_layer), repeats) for nodes, repeats in zip(MANY, (3, 1), strict=True))
    show(medium)
    show(large)
    slowest = sorted(large.parts.items(), key=lambda item: -item[1])
    print("  where the largest spends its time: " + ", ".join(f"{name} {s:.1f} s" for name, s in slowest))
    compare(f"{small.nodes:,} nodes, median of {len(small.seconds)}", small.median, LIMIT_SMALL_SECONDS, "s")
    compare(f"{large.nodes:,} nodes", large.median, LIMIT_LARGE_SECONDS, "s")
    compare(f"{large.nodes:,} nodes, peak of the process", large.peak_bytes / 1e9, LIMIT_LARGE_BYTES / 1e9, "GB")
    growth = large.median / medium.median * (MANY[1] / MANY[0]) / (large.nodes / medium.nodes)
    compare("growth from 10,000 to 100,000 nodes", growth, LIMIT_GROWTH, "×")
    print(
        f"Measured around make_request(…).compilation(graph) and .report(), each size in a process of its own: wall clock, "
        f"processor time beside it;\npeak memory by getrusage. Python {platform.python_version()}, {platform.machine()}."
    )


if __name__ == "__main__":
    main()
