"""The optimizer that decides: how long it takes, how that grows, in which memory, and what it gains over greedy fusion.

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
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from random import Random

from dovetail import Graph, input, ops, param
from dovetail.dtypes import f32
from dovetail.egraph.decide import Search, decide
from dovetail.ir.collector import collector_paused
from dovetail.models import BertShape, LlamaShape, bert, llama, llama_step, resnet, unet
from dovetail.passes.pipeline import PASSES, lower, vocabulary
from dovetail.runtime.compile import make_request

LIMITS = {28: 0.4, 80: 0.8}
MANY = (10_000, 100_000)
LIMIT_LARGE_SECONDS = 30.0
LIMIT_LARGE_BYTES = 1_000_000_000
LIMIT_GROWTH = 12.0

HOW = """Measured around decide(graph, ...) by the wall clock, greedy fusion, which it starts from, included; the graph
has its blocks spelled out and is canonical. The first run of a process, in which patterns are traced, is of a small
graph and not counted. Growth is the quotient of the medians for ten times the nodes. Peak memory is ru_maxrss of
getrusage, with the graph, all of its alternatives and all proofs. Costs are predicted seconds by the machine model of
the cpu target; symbols count as 128."""

SETUP = make_request(target="cpu").setup


@dataclass(frozen=True, slots=True)
class Measured:
    """One size: its nodes, the seconds of each repeat, the peak memory of the process."""

    layers: int
    nodes: int
    held: int
    """Nodes of the e-graph."""
    pieces: int
    solved: int
    wall: tuple[float, ...]
    steps: dict[str, float]
    peak_bytes: int


def canonical(graph: Graph) -> Graph:
    return lower(graph, SETUP, [p for p in PASSES if p.name in ("lower_blocks", "canonicalize")]).graph.settled()


def model(layers: int) -> Graph:
    """Small tensors: what is measured is the optimizer, and it looks at nodes, not at elements."""
    shape = LlamaShape(layers=layers, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=100)
    return canonical(llama(shape, batch=1, seq=8))


def irregular(nodes: int) -> Graph:
    """Residual blocks of three kinds, no two of one width: nothing repeats, so that nothing is solved only once."""
    random = Random(0)
    x = input("x", f32[8, 64])
    made = 0
    while made < nodes:
        width, kind = random.randrange(32, 20_000), random.randrange(3)
        w, v = param(f"w{made}", f32[64, width]), param(f"v{made}", f32[width, 64])
        h = x * param(f"g{made}", f32[64])
        if kind < 2:
            h = h * ops.rsqrt(ops.reduce_mean(x * x, axes=(-1,)) + 1e-5)
        h = h @ w + param(f"b{made}", f32[width])
        x = x + (ops.relu(h) if kind == 0 else h * ops.sigmoid(h) if kind == 1 else ops.tanh(h)) @ v
        made += (15, 16, 11)[kind]
    return canonical(Graph.of(x))


def decided(graph: Graph) -> Search:
    with collector_paused():
        return decide(graph, vocabulary(SETUP), machine=SETUP.claims.machine, sizes=SETUP.sizes).search


def measure(layers: int, repeats: int, nodes: int = 0) -> Measured:
    """A model of n layers, or an irregular one of n nodes."""
    decided(model(2))
    graph = irregular(nodes) if nodes else model(layers)
    wall: list[float] = []
    search: Search | None = None
    for _ in range(repeats):
        search = None
        started = time.perf_counter()
        search = decided(graph)
        wall.append(time.perf_counter() - started)
    assert search is not None
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if platform.system() == "Darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    steps = dict(search.seconds)
    return Measured(layers, len(graph.values), search.nodes, search.pieces, search.solved, tuple(wall), steps, peak)


def in_child(layers: int, repeats: int, nodes: int = 0) -> Measured:
    size = ["--layers", str(layers), "--repeats", str(repeats), "--nodes", str(nodes)]
    command = [sys.executable, __file__, *size]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Measured(**json.loads(done.stdout))


def show(measured: Measured) -> float:
    wall = statistics.median(measured.wall)
    steps = ", ".join(f"{name} {seconds:.3f}" for name, seconds in measured.steps.items())
    print(
        f"{measured.layers:6,} layers {measured.nodes:8,} nodes {measured.held:8,} held  {wall:7.3f} s "
        f"(best {min(measured.wall):.3f}, {len(measured.wall)} runs)  {measured.peak_bytes / 1e9:5.2f} GB  "
        f"{measured.solved} of {measured.pieces} pieces solved  [{steps}]"
    )
    return wall


def compare(what: str, found: float, limit: float, unit: str) -> None:
    verdict = "within" if found <= limit else "ABOVE"
    print(f"  {what:<44} {found:8.2f} {unit:<2}  {verdict} the limit of {limit:g} {unit}")


def gains() -> None:
    """Cost as given, after greedy fusion, and as chosen."""
    graphs = {
        "llama, 8 layers, 128 tokens": llama(LlamaShape(), batch=1, seq=128),
        "llama, one token, 256 cached": llama_step(LlamaShape(), batch=1, past=256),
        "qwen-style, 8 layers, 16 tokens": llama(LlamaShape(normed_heads=True), batch=1, seq=16),
        "bert-base, 1 × 128": bert(BertShape(layers=12, hidden=768, heads=12, inner=3072), batch=1, seq=128),
        "resnet-50, 1 × 224 × 224": resnet(batch=1, image=224),
        "unet block": unet(batch=1),
    }
    print(f"\n{'model':34} {'given':>12} {'greedy':>12} {'chosen':>12}")
    for name, graph in graphs.items():
        search = decided(canonical(graph))
        less = 100 * (1 - search.chosen / search.greedy)
        costs = " ".join(f"{seconds * 1e6:9.1f} µs" for seconds in (search.original, search.greedy, search.chosen))
        print(f"{name:34} {costs}  {less:5.2f} % less than greedy")


def second_engine(repeats: int) -> None:
    """The same with egglog to look for declared ops: whole graphs, nothing folded."""
    if find_spec("egglog") is None:
        print("egglog is not installed, and not measured")
        return
    words = vocabulary(replace(SETUP, engine="egglog"))
    decide(model(2), words, machine=SETUP.claims.machine)
    graph, layers = model(min(LIMITS)), min(LIMITS)
    ours = decided(graph).chosen
    for _ in range(repeats):
        started = time.perf_counter()
        with collector_paused():
            search = decide(graph, words, machine=SETUP.claims.machine, sizes=SETUP.sizes).search
        wall = time.perf_counter() - started
        steps = ", ".join(f"{name} {seconds:.3f}" for name, seconds in search.seconds.items())
        print(f"{layers:6,} layers with egglog {wall:7.3f} s, cost {search.chosen / ours:.9f} of ours  [{steps}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, help="measure this one size here and print it as JSON")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=0, help="with --layers: an irregular graph of this many instead")
    parser.add_argument("--irregular", action="store_true", help="measure the largest size without repetition too")
    parser.add_argument("--small", action="store_true", help="leave the two large sizes out")
    args = parser.parse_args()
    if args.layers is not None:
        print(json.dumps(asdict(measure(args.layers, args.repeats, args.nodes))))
        return
    print(f"Llama-style decoder on {platform.machine()}, Python {platform.python_version()}, target cpu")
    small = {layers: in_child(layers, 7) for layers in LIMITS}
    walls = {layers: show(measured) for layers, measured in small.items()}
    if not args.small:
        few, many = sorted(small)
        per_layer = (small[many].nodes - small[few].nodes) / (many - few)
        medium, large = (
            in_child(round(nodes / per_layer), repeats) for nodes, repeats in zip(MANY, (3, 1), strict=True)
        )
        seconds = [show(measured) for measured in (medium, large)]
        compare(f"{large.nodes:,} nodes", seconds[1], LIMIT_LARGE_SECONDS, "s")
        compare(f"{large.nodes:,} nodes, peak of the process", large.peak_bytes / 1e9, LIMIT_LARGE_BYTES / 1e9, "GB")
        compare(f"growth, {medium.nodes:,} to {large.nodes:,} nodes", seconds[1] / seconds[0], LIMIT_GROWTH, "×")
        print("Nothing repeats:")
        for nodes in MANY if args.irregular else MANY[:1]:
            seconds = show(alone := in_child(0, 1, nodes))
            if nodes == MANY[-1]:
                compare(f"{alone.nodes:,} nodes", seconds, LIMIT_LARGE_SECONDS, "s")
                compare(f"{alone.nodes:,} nodes, peak", alone.peak_bytes / 1e9, LIMIT_LARGE_BYTES / 1e9, "GB")
    for layers, limit in LIMITS.items():
        compare(f"{layers} layers, {small[layers].nodes:,} nodes", walls[layers], limit, "s")
    second_engine(repeats=5)
    gains()
    print(HOW)


if __name__ == "__main__":
    main()
