"""Models on meshes of simulated devices, judged by float64 and by one device: `make meshes`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from dovetail import Graph, evaluate
from dovetail.ir.literal import Array
from dovetail.mesh import explain_placement
from dovetail.models.bert import BertShape, bert
from dovetail.models.llama import LlamaShape, llama, llama_step
from dovetail.models.resnet import ResnetShape, resnet
from dovetail.models.weights import random_weights
from dovetail.runtime.compile import compilation, make_request
from dovetail.targets.xla.explain.collective import Collective
from dovetail.targets.xla.placement import Placement
from dovetail.targets.xla.target import placement_of

BATCH, SEQ = 8, 8
LLAMA = LlamaShape(layers=1, hidden=64, heads=8, kv_heads=4, inner=128, vocabulary=64)
BERT = BertShape(layers=1, hidden=64, heads=8, inner=128, vocabulary=64, positions=16)
RESNET = ResnetShape(blocks=(1, 1), width=8, classes=16)
MESHES: dict[str, dict[str, int]] = {"data": {"dp": 8}, "tensor": {"tp": 4}, "both": {"dp": 2, "tp": 4}}
NAMES = ("bert", "llama", "llama_step", "resnet")
TIMES, FLOOR = 2.0, 1e-7
"""A mesh may have this many times the error of one device, and this much besides."""
MANY_LAYERS = 28


@dataclass(frozen=True, slots=True)
class Ran:
    """What a model gave on a mesh: its largest error beside float64, and collectives, compiled and predicted."""

    error: float
    totals: Mapping[str, tuple[int, int]]
    """By kind, how many collectives the program of a device has, and their bytes."""
    predicted: Mapping[str, tuple[int, int]]


@cache
def work(name: str) -> tuple[Graph, dict[str, Array]]:
    """A model with random inputs."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 64, (BATCH, SEQ))
    if name == "llama":
        return llama(LLAMA, batch=BATCH, seq=SEQ), {"input_ids": ids}
    if name == "llama_step":
        graph = llama_step(LLAMA, batch=BATCH, past=SEQ)
        shape = (BATCH, LLAMA.kv_heads, SEQ, LLAMA.width)
        drawn = {f"past_{side}.0": rng.standard_normal(shape).astype(np.float32) for side in "kv"}
        return graph, {"input_ids": ids[:, :1], "position": np.array([SEQ]), **drawn}
    if name == "resnet":
        image = rng.standard_normal((BATCH, 3, 32, 32)).astype(np.float32)
        return resnet(RESNET, batch=BATCH, image=32), {"image": image}
    mask = (np.arange(SEQ) < rng.integers(2, SEQ, (BATCH, 1))).astype(np.int64)
    types = np.zeros((BATCH, SEQ), np.int64)
    return bert(BERT, batch=BATCH, seq=SEQ), {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}


@cache
def expected(name: str) -> Mapping[str, Array]:
    """The outputs in float64."""
    graph, feeds = work(name)
    return evaluate(graph, feeds, params=random_weights(graph), lift=True)


def ran(name: str, mesh: Mapping[str, int] | None) -> Ran:
    """A model on a mesh by the preset for it, or on one device."""
    from dovetail.targets.xla.explain.compiled import read_text
    from dovetail.targets.xla.explain.explained import Explained
    from dovetail.targets.xla.run import XlaGraph

    graph, feeds = work(name)
    plan = compilation(graph, make_request(target="xla")).plan
    placement = None if mesh is None else placement_of(mesh, None, "tensor" if "tp" in mesh else "data")
    runner = XlaGraph(plan, placement).bind(random_weights(graph))
    found, wanted = runner.run(feeds), expected(name)
    error = max(float(np.abs(found[k] - wanted[k]).max() / np.abs(wanted[k]).max()) for k in wanted)
    placement = placement or Placement.of({"one": 1})
    totals = totals_of(read_text(runner.compiled.as_text(), placement))
    return Ran(error, totals, {} if mesh is None else Explained(plan.graph, placement).totals)


def totals_of(collectives: Iterable[Collective]) -> dict[str, tuple[int, int]]:
    """By kind, how many there are and their bytes."""
    listed = list(collectives)
    counts = Counter(c.kind for c in listed)
    return {kind: (counts[kind], sum(c.bytes for c in listed if c.kind == kind)) for kind in sorted(counts)}


def bound(alone: Ran) -> float:
    """The error that a mesh may have."""
    return TIMES * alone.error + FLOOR


def main() -> int:
    parser = argparse.ArgumentParser(prog="make meshes", description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, help=f"of {', '.join(NAMES)}; all without any")
    wrong = 0
    for name in parser.parse_args().names:
        alone = ran(name, None)
        print(f"{name:11} one device         error {alone.error:.1e}", flush=True)
        for mesh in MESHES.values():
            found = ran(name, mesh)
            wrong += found.error > bound(alone) or found.totals != found.predicted
            axes = ", ".join(f"{axis} {size}" for axis, size in mesh.items())
            moved = ", ".join(f"{n} {kind} of {size:,} B" for kind, (n, size) in found.totals.items()) or "nothing"
            agrees = "as predicted" if found.totals == found.predicted else f"predicted {found.predicted}"
            print(f"{name:11} {axes:18} error {found.error:.1e}   {moved}, {agrees}", flush=True)
    graph = llama(replace(LLAMA, layers=MANY_LAYERS), batch=BATCH, seq=SEQ)
    for turn in ("first", "second"):
        before, began = time.process_time(), time.perf_counter()
        found = explain_placement(graph, mesh=MESHES["both"], preset="tensor")
        print(
            f"explain, {MANY_LAYERS} layers, {turn}: {dict(found.counts)}, {time.perf_counter() - began:.2f} s, "
            f"{time.process_time() - before:.2f} s of CPU without the child that runs Shardy's passes",
            flush=True,
        )
    return int(wrong > 0)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    sys.exit(main())
