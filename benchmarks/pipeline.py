"""The whole pipeline, from a graph as written to plan and report: how long it takes, how that grows, in which memory.

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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from dovetail import Graph
from dovetail.models import LlamaShape, llama
from dovetail.runtime.compile import compilation, make_request

SMALL_LAYERS = 28
MANY = (10_000, 100_000)
LIMIT_SMALL_SECONDS = 0.5
LIMIT_LARGE_SECONDS = 25.0
LIMIT_LARGE_BYTES = 2_000_000_000
LIMIT_GROWTH = 12.0

HOW = """Measured around compilation(graph, make_request(target="cpu")) and .report() together, by the wall clock, in a
process of its own for each size; patterns are traced once in a process, and that first run is shown apart. Busy is
the processor's time of the same runs: on a machine that does nothing else it is the wall clock's. The two large sizes
take turns, three times, and growth is the median of the three quotients, since machines do not keep their speed. Peak
memory is ru_maxrss of getrusage. Nodes are those of MIR, parameters and constants included."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One size: its nodes, the seconds of each repeat, the peak memory of the process."""

    layers: int
    nodes: int
    kernels: int
    first: float
    """Seconds of a first, small compilation, in which patterns are traced."""
    wall: tuple[float, ...]
    busy: tuple[float, ...]
    parts: dict[str, float]
    """Seconds of each pass, of planning and of the report, in the last repeat."""
    peak_bytes: int


def model(layers: int) -> Graph:
    """Small tensors: what is measured is the compiler, and it looks at nodes, not at elements."""
    shape = LlamaShape(layers=layers, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=100)
    return llama(shape, batch=1, seq=8)


def measure(layers: int, repeats: int) -> Measured:
    """Compile a small graph to warm up, then the requested one, several times."""
    started = time.perf_counter()
    compilation(model(1), make_request(target="cpu")).report()
    first = time.perf_counter() - started
    graph = model(layers)
    wall: list[float] = []
    busy: list[float] = []
    parts: dict[str, float] = {}
    nodes = kernels = 0
    for _ in range(repeats):
        started, worked = time.perf_counter(), time.process_time()
        made = compilation(graph, make_request(target="cpu"))
        planned = time.perf_counter()
        report = made.report()
        ended = time.perf_counter()
        wall.append(ended - started)
        busy.append(time.process_time() - worked)
        parts = {p.name: p.seconds for p in report.passes}
        parts |= {"verify and plan": planned - started - sum(parts.values()), "report": ended - planned}
        nodes, kernels = report.nodes_before, len(report.kernels)
        del made, report
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if platform.system() == "Darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return Measured(layers, nodes, kernels, first, tuple(wall), tuple(busy), parts, peak)


def in_child(layers: int, repeats: int) -> Measured:
    command = [sys.executable, __file__, "--layers", str(layers), "--repeats", str(repeats)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Measured(**json.loads(done.stdout))


def together(measured: Sequence[Measured]) -> Measured:
    """Several processes of one size as one."""
    wall, busy = (tuple(s for m in measured for s in getattr(m, name)) for name in ("wall", "busy"))
    peak = max(m.peak_bytes for m in measured)
    return replace(measured[-1], wall=wall, busy=busy, peak_bytes=peak)


def show(measured: Measured) -> None:
    wall, busy = statistics.median(measured.wall), statistics.median(measured.busy)
    print(
        f"{measured.layers:6,} layers {measured.nodes:8,} nodes {measured.kernels:7,} kernels  {wall:7.3f} s "
        f"({busy:.3f} s busy, median of {len(measured.wall)}) {wall / measured.nodes * 1e6:5.0f} µs a node  "
        f"{measured.peak_bytes / 1e9:5.2f} GB"
    )


def compare(what: str, found: float, limit: float, unit: str) -> None:
    verdict = "within" if found <= limit else "ABOVE"
    print(f"  {what:<44} {found:8.2f} {unit:<2}  {verdict} the limit of {limit:g} {unit}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, help="measure this one size here and print it as JSON")
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    if args.layers is not None:
        print(json.dumps(asdict(measure(args.layers, args.repeats))))
        return
    small = in_child(SMALL_LAYERS, 9)
    print(f"Llama-style decoder on {platform.machine()}, Python {platform.python_version()}, target cpu")
    print(f"first compilation of a process: {small.first:.3f} s, patterns traced")
    show(small)
    per_layer = (small.nodes - in_child(1, 1).nodes) / (SMALL_LAYERS - 1)
    sizes = [round(nodes / per_layer) for nodes in MANY]
    pairs = [(in_child(sizes[0], 5), in_child(sizes[1], 2)) for _ in range(3)]
    medium, large = (together(measured) for measured in zip(*pairs, strict=True))
    show(medium)
    show(large)
    slowest = sorted(large.parts.items(), key=lambda item: -item[1])
    print("  the largest, last run: " + ", ".join(f"{name} {s:.1f} s" for name, s in slowest if s >= 0.05))
    growth = statistics.median(statistics.median(b.wall) / statistics.median(a.wall) for a, b in pairs)
    compare(f"{small.nodes:,} nodes", statistics.median(small.wall), LIMIT_SMALL_SECONDS, "s")
    compare(f"{large.nodes:,} nodes", statistics.median(large.wall), LIMIT_LARGE_SECONDS, "s")
    compare(f"{large.nodes:,} nodes, peak of the process", large.peak_bytes / 1e9, LIMIT_LARGE_BYTES / 1e9, "GB")
    compare(f"growth, {medium.nodes:,} to {large.nodes:,} nodes", growth, LIMIT_GROWTH, "×")
    print(HOW)


if __name__ == "__main__":
    main()
