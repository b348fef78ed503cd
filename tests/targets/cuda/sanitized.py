"""Small programs under compute-sanitizer: `make sanitize-cuda`. Arguments are names of programs; without any, all run.

A decoder's step, also with weights in blocks, an encoder and layers of products, each with launches that steps share
and as a persistent kernel; and products and attentions of f32. Each program runs in a process of its own for each
tool, all at once; what they find is one line each, and time limits all of them. A first round without a tool fills
the cache, so that tools watch kernels and no compiler. Races are sought in shared memory alone: the tool knows no
other. `KNOWN` has the one report that is no race, which is told by its name; any other one in the same run is a
failure.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import dovetail
from dovetail import Graph, library, param
from dovetail.dtypes import bf16, f16, f32
from dovetail.ir.dtype import DType
from dovetail.models import BertShape, LlamaShape, bert, llama_cached, random_weights
from dovetail.models.decoder import cached_decoder
from dovetail.models.decoder_shape import DecoderShape, DecoderStyle, parameter_shapes
from dovetail.targets.cuda.driver.driver import Driver, KernelFunction, LoadedModule, driver
from dovetail.targets.cuda.target import target_for
from dovetail.targets.gpu.kernel import RESIDENT
from tests.block_arrays import random_blocks

TOOLS = ("memcheck", "racecheck", "synccheck")
LAYERS, KEYS, STEPS = 4, 16, 3
SHAPE = LlamaShape(layers=LAYERS, hidden=256, heads=4, kv_heads=2, inner=256, vocabulary=256, dtype=bf16)
IN_BLOCKS = DecoderShape(
    layers=LAYERS, hidden=1024, heads=16, kv_heads=2, width=64, inner=1024, vocabulary=256, context=64, eps=1e-6,
    is_tied=True, style=DecoderStyle(normed_heads=True),
)  # fmt: skip
"""Products of this depth have 256 threads with weights in blocks too."""
NARROW = replace(SHAPE, hidden=128, inner=192)
"""Its products have 128 threads of a block in a persistent kernel, where all other parts have 256."""
FAILED = 86
"""The exit status of a tool that found something."""
MOST = 100_000
"""Hazards that racecheck prints."""
_SUMMARY = re.compile(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (.*)")
_DISPLAYED = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")
_HAZARD = re.compile(
    r"Potential (\w+) hazard detected at __shared__ (0x\w+) in block .*\n"
    r"=+ +(Read|Write) Thread \((\d+),0,0\) at (\w+)\+.*\n"
    r"=+ +(Read|Write) Thread \((\d+),0,0\) at (\w+)\+"
)
_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Hazard:
    """Two accesses that racecheck finds in no order: its kind, and the thread and the kernel of each, by access."""

    kind: str
    threads: Mapping[str, int]
    kernels: frozenset[str]


@dataclass(frozen=True, slots=True)
class Known:
    """A report that is no race."""

    name: str
    program: str
    threads: int
    """Those of a block that have met at a barrier of their own before."""

    def takes(self, hazard: Hazard) -> bool:
        """Whether a hazard is between one of these threads, which stored, and another one, which loads after both have
        met at a barrier of all that compute."""
        stored, loaded = hazard.threads.get("Write", self.threads), hazard.threads.get("Read", 0)
        return (hazard.kind, hazard.kernels) == ("RAW", {RESIDENT}) and stored < self.threads <= loaded


KNOWN = Known("a_barrier_of_fewer_threads_before", "narrow-persistent", 128)
"""Racecheck loses the order of a barrier after one that some of its threads met at alone (docs/design/0026 has a case
of its own that shows it). `step-persistent` has the same stages, loads and barriers, and none of fewer threads."""


def step_graph(shape: LlamaShape = SHAPE) -> Graph:
    """One token of a decoder; with a batch of any size its attention would have a grid that is not counted."""
    return llama_cached(shape, batch=1, seq=1)


def step(device: Callable[[], Driver], cache: str, shape: LlamaShape = SHAPE) -> bytes:
    """A few tokens of a decoder whose cache stays on the device."""
    graph = step_graph(shape)
    program = dovetail.compile(graph, target=target_for(device), cache=cache).bind(random_weights(graph))
    size = (1, shape.kv_heads, KEYS, shape.width)
    fed: dict[str, Any] = {f"{s}_cache.{i}": np.zeros(size, bf16.numpy) for s in "kv" for i in range(LAYERS)}
    fed |= {"input_ids": np.array([[3]]), "positions": np.arange(1), "keys": np.arange(KEYS)}
    there = dict(program.to_device(fed))
    tokens: list[bytes] = []
    for _ in range(STEPS):
        found = program.run(there, outputs="device")
        there["input_ids"], there["positions"] = found["next_ids"], found["next_positions"]
        tokens.append(found["next_ids"].numpy().tobytes())
    return b"".join(tokens)


def narrow(device: Callable[[], Driver], cache: str) -> bytes:
    """The same with parts of fewer threads than a block has."""
    return step(device, cache, NARROW)


def encoder(device: Callable[[], Driver], cache: str, dtype: DType = f16, tokens: int = 16) -> bytes:
    """An encoder of few tokens."""
    graph = bert(BertShape(LAYERS, 128, 4, 256, 64, tokens + 16, dtype=dtype), batch=1, seq=tokens)
    program = dovetail.compile(graph, target=target_for(device), cache=cache).bind(random_weights(graph))
    fed: Mapping[str, Any] = {
        "input_ids": np.arange(tokens).reshape(1, tokens),
        "token_type_ids": np.zeros((1, tokens), np.int64),
        "attention_mask": np.ones((1, tokens), np.int64),
    }
    there = program.to_device(fed)
    found = [program.run(there, outputs="device")["last_hidden_state"].numpy().tobytes() for _ in range(STEPS)]
    assert len(set(found)) == 1, "runs are equal to the bit"
    return found[0]


def spans_graph() -> Graph:
    """A product of f32 whose blocks share the rounds of all tiles."""
    x, w = dovetail.input("x", f32[300, 2048]), param("w", f32[2048, 500])
    return Graph.of({"y": library.gelu(x @ w)})


def spans(device: Callable[[], Driver], cache: str) -> bytes:
    """The same, some times."""
    graph = spans_graph()
    program = dovetail.compile(graph, target=target_for(device), cache=cache).bind(random_weights(graph))
    there = program.to_device({"x": np.ones((300, 2048), np.float32)})
    found = [program.run(there, outputs="device")["y"].numpy().tobytes() for _ in range(STEPS)]
    assert len(set(found)) == 1, "runs are equal to the bit"
    return found[0]


def layers(device: Callable[[], Driver], cache: str, width: int = 128, inner: int = 64) -> bytes:
    """Norms and products of one row."""
    x = dovetail.input("x", bf16[1, width])
    for layer in range(LAYERS):
        normed = library.rms_norm(x, param(f"gain{layer}", bf16[width]), eps=1e-6)
        gate, up = (param(f"{name}{layer}", bf16[width, inner]) for name in ("gate", "up"))
        x = x + library.swiglu(normed, gate, up) @ param(f"w{layer}", bf16[inner, width])
    graph = Graph.of({"y": x})
    program = dovetail.compile(graph, target=target_for(device), cache=cache).bind(random_weights(graph))
    there = program.to_device({"x": np.ones((1, width), bf16.numpy)})
    found = [program.run(there, outputs="device")["y"].numpy().tobytes() for _ in range(STEPS)]
    assert len(set(found)) == 1, "runs are equal to the bit"
    return found[0]


def ring(device: Callable[[], Driver], cache: str) -> bytes:
    """The same with weights that do not fit shared memory: 16 columns of 4,096 for each block."""
    return layers(device, cache, 4096, 1056)


def blocks_graph(kind: str) -> Graph:
    """One token of a decoder with weights in blocks of a format."""
    sizes = parameter_shapes(IN_BLOCKS)
    return cached_decoder(IN_BLOCKS, {name: kind if len(size) == 2 else "f32" for name, size in sizes.items()})


def in_blocks(device: Callable[[], Driver], cache: str, kind: str) -> bytes:
    """A few tokens of that decoder."""
    params: dict[str, Any] = {
        name: random_blocks(kind, *size, seed) if len(size) == 2 else np.ones(size, np.float32)
        for seed, (name, size) in enumerate(parameter_shapes(IN_BLOCKS).items())
    }
    program = dovetail.compile(blocks_graph(kind), target=target_for(device), cache=cache).bind(params)
    size = (1, IN_BLOCKS.kv_heads, KEYS, IN_BLOCKS.width)
    fed: dict[str, Any] = {f"{s}_cache.{i}": np.zeros(size, np.float32) for s in "kv" for i in range(LAYERS)}
    fed |= {"input_ids": np.array([[3]]), "positions": np.array([9]), "keys": np.arange(10)}
    there = program.to_device(fed)
    found = [program.run(there, outputs="device")["logits"].numpy().tobytes() for _ in range(STEPS)]
    assert len(set(found)) == 1, "runs are equal to the bit"
    return found[0]


PROGRAMS = {
    "step": step,
    "narrow": narrow,
    "encoder": encoder,
    "layers": layers,
    "ring": ring,
    "q8_0": partial(in_blocks, kind="q8_0"),
    "q4_0": partial(in_blocks, kind="q4_0"),
}
LAUNCHED: Mapping[str, Callable[..., bytes]] = {"spans": spans, "encoder_f32": partial(encoder, dtype=f32, tokens=40)}
"""Programs that are no persistent kernels."""
NAMES = (*(f"{name}{kind}" for name in PROGRAMS for kind in ("", "-persistent")), *LAUNCHED)


def run(name: str, cache: str, device: Callable[[], Driver] = driver) -> int:
    """Run a program twice, to equal bits; how many persistent kernels it has: none, or at least one where it should."""
    plain, _, persistent = name.partition("-")
    here = device()
    here.description = replace(here.description, cooperative="on" if persistent else "off")
    loaded: list[bool] = []
    function = LoadedModule.function

    def noted(*given: Any, cooperative: bool = False, **named: Any) -> KernelFunction:
        loaded.append(cooperative)
        return function(*given, cooperative=cooperative, **named)

    LoadedModule.function = noted
    program = PROGRAMS.get(plain) or LAUNCHED[plain]
    first = program(lambda: here, cache)
    count = sum(loaded)
    assert bool(count) is bool(persistent), f"{name}: {count} persistent kernels"
    assert program(lambda: here, cache) == first, "programs are equal to the bit"
    return count


def hazards(output: str) -> list[Hazard] | None:
    """What racecheck found; None where it did not print all of it."""
    found = [
        Hazard(kind, {one: int(first), other: int(second)}, frozenset({a, b}))
        for kind, _, one, first, a, other, second, b in _HAZARD.findall(output)
    ]
    displayed = _DISPLAYED.findall(output)
    return found if displayed and int(displayed[-1]) == len(found) < MOST else None


def known(name: str, kind: str, output: str, status: int) -> str:
    """What is told of a report that is known and no race; "" of every other one."""
    if (kind, status, name) != ("racecheck", FAILED, KNOWN.program):
        return ""
    found = hazards(output)
    if not found or not all(KNOWN.takes(hazard) for hazard in found):
        return ""
    return f"known, and no race: {KNOWN.name} ({len(found)} hazards)"


def last_words(output: str) -> str:
    """The last lines of the program itself."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("=====")]
    return " | ".join(lines[-2:])[:300]


def told(output: str, status: int) -> str:
    """What a tool says in the end, with the first lines of what it found."""
    found = _SUMMARY.findall(output)
    if status == 0 and found:
        return found[-1]
    lines = [line.removeprefix("=========").strip() for line in output.splitlines() if line.strip()]
    last = f"status {status}" if status != FAILED else found[-1] if found else "found something"
    return " | ".join([last, *(lines[-6:] if status not in (0, FAILED) else lines[1:9])])[:700]


@dataclass(frozen=True, slots=True)
class Running:
    """A process that prints to a file. Into a pipe that is not read yet a tool prints no more than 64 KB: it would then
    take no more reports from the device, and blocks of a kernel would wait in vain for the one that reports."""

    process: subprocess.Popen[bytes]
    output: Path

    @classmethod
    def of(cls, command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None) -> Running:
        with output.open("wb") as file:
            started = subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
        return cls(started, output)

    def ended(self, end: float) -> tuple[str, int | None]:
        """What it has printed, and its status; None where it has not ended by a time of the monotonic clock."""
        status = None
        try:
            status = self.process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return self.output.read_text(errors="replace"), status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", metavar="program", help=", ".join(NAMES))
    parser.add_argument("--tools", nargs="+", default=TOOLS, help="tools of compute-sanitizer")
    parser.add_argument("--within", type=float, default=90.0, help="seconds for all of them")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(f"ran {run(options.child, os.environ['DOVETAIL_CACHE'])} persistent kernels")
        return 0
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        print("compute-sanitizer is not installed")
        return 2
    end = time.monotonic() + options.within
    with tempfile.TemporaryDirectory() as folder:
        names = options.programs or NAMES
        watched = [tool, "--error-exitcode", str(FAILED), "--print-limit", str(MOST), "--tool"]
        hazard = ["--racecheck-report", "hazard"]
        rounds: list[dict[tuple[str, str], list[str]]] = [{(name, "alone"): [] for name in names}]
        rounds += [
            {
                (name, kind): [*watched, kind, *(hazard if kind == "racecheck" else ())]
                for kind in options.tools
                for name in names
            }
        ]
        bad = False
        for several in rounds:
            started = {key: _started(before, *key, folder) for key, before in several.items()}
            for (name, kind), one in started.items():
                output, status = one.ended(end)
                said = "" if status is not None else f"not done within {options.within:g} s"
                status = 1 if status is None else status
                ran = re.search(r"ran \d+ persistent kernels", output)
                is_known = known(name, kind, output, status)
                fine = (status == 0 or bool(is_known)) and ran is not None
                bad |= not fine
                summary = is_known or said or told(output, status)
                if ran is None:
                    summary = f"it did not end: {last_words(output)} | {summary}"
                elif kind == "alone":
                    summary = ran[0]
                print(f"{name:20} {kind:10} {'ok ' if fine else 'BAD'} {summary}", flush=True)
    return int(bad)


def _started(before: list[str], name: str, kind: str, folder: str) -> Running:
    own = {**os.environ, "PYTHONPATH": "src:.", "DOVETAIL_CACHE": str(Path(folder) / name)}
    command = [*before, sys.executable, "-m", "tests.targets.cuda.sanitized", "--child", name]
    return Running.of(command, Path(folder) / f"{name}.{kind}.txt", own)


if __name__ == "__main__":
    sys.exit(main())
