"""Small programs under compute-sanitizer: `make sanitize-cuda`. Arguments are names of programs; without any, all run.

A decoder's step, an encoder and layers of products, each with launches that steps share and as a persistent kernel.
Each program runs in a process of its own for each tool, all at once; what they find is one line each, and time limits
all of them. A first round without a tool fills the cache, so that tools watch kernels and no compiler. Races are sought
in shared memory alone: the tool knows no other.
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
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import dovetail
from dovetail import Graph, bf16, f16, library, param
from dovetail.models import BertShape, LlamaShape, bert, llama_cached, random_weights
from dovetail.targets.cuda.driver import Driver, Function, Module, driver
from dovetail.targets.cuda.target import target_for

TOOLS = ("memcheck", "racecheck", "synccheck")
LAYERS, KEYS, STEPS = 4, 16, 3
SHAPE = LlamaShape(layers=LAYERS, hidden=128, heads=4, kv_heads=2, inner=192, vocabulary=256, dtype=bf16)
FAILED = 86
"""The exit status of a tool that found something."""
_SUMMARY = re.compile(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (.*)")
_ROOT = Path(__file__).parents[3]


def step_graph() -> Graph:
    """One token of a decoder; with a batch of any size its attention would have a grid that is not counted."""
    return llama_cached(SHAPE, batch=1, seq=1)


def step(device: Callable[[], Driver], cache: str) -> bytes:
    """A few tokens of a decoder whose cache stays on the device."""
    graph = step_graph()
    program = dovetail.compile(graph, target=target_for(device), cache=cache).bind(random_weights(graph))
    size = (1, SHAPE.kv_heads, KEYS, SHAPE.width)
    fed: dict[str, Any] = {f"{s}_cache.{i}": np.zeros(size, bf16.numpy) for s in "kv" for i in range(LAYERS)}
    fed |= {"input_ids": np.array([[3]]), "positions": np.arange(1), "keys": np.arange(KEYS)}
    there = dict(program.to_device(fed))
    tokens: list[bytes] = []
    for _ in range(STEPS):
        found = program.run(there, outputs="device")
        there["input_ids"], there["positions"] = found["next_ids"], found["next_positions"]
        tokens.append(found["next_ids"].numpy().tobytes())
    return b"".join(tokens)


def encoder(device: Callable[[], Driver], cache: str) -> bytes:
    """An encoder of few tokens."""
    graph = bert(BertShape(LAYERS, 128, 4, 256, 64, 32, dtype=f16), batch=1, seq=16)
    program = dovetail.compile(graph, target=target_for(device), cache=cache).bind(random_weights(graph))
    fed: Mapping[str, Any] = {
        "input_ids": np.arange(16).reshape(1, 16),
        "token_type_ids": np.zeros((1, 16), np.int64),
        "attention_mask": np.ones((1, 16), np.int64),
    }
    there = program.to_device(fed)
    found = [program.run(there, outputs="device")["last_hidden_state"].numpy().tobytes() for _ in range(STEPS)]
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


PROGRAMS = {"step": step, "encoder": encoder, "layers": layers, "ring": ring}
NAMES = tuple(f"{name}{kind}" for name in PROGRAMS for kind in ("", "-persistent"))


def run(name: str, cache: str, device: Callable[[], Driver] = driver) -> int:
    """Run a program twice, to equal bits; how many persistent kernels it has: none, or at least one where it should."""
    plain, _, persistent = name.partition("-")
    here = device()
    here.description = replace(here.description, cooperative="on" if persistent else "off")
    loaded: list[bool] = []
    function = Module.function

    def noted(*given: Any, cooperative: bool = False, **named: Any) -> Function:
        loaded.append(cooperative)
        return function(*given, cooperative=cooperative, **named)

    Module.function = noted
    first = PROGRAMS[plain](lambda: here, cache)
    count = sum(loaded)
    assert bool(count) is bool(persistent), f"{name}: {count} persistent kernels"
    assert PROGRAMS[plain](lambda: here, cache) == first, "programs are equal to the bit"
    return count


def told(output: str, status: int) -> str:
    """What a tool says in the end, with the first lines of what it found."""
    found = _SUMMARY.findall(output)
    if status == 0 and found:
        return found[-1]
    lines = [line.removeprefix("=========").strip() for line in output.splitlines() if line.strip()]
    last = f"status {status}" if status != FAILED else found[-1] if found else "found something"
    return " | ".join([last, *(lines[-6:] if status not in (0, FAILED) else lines[1:9])])[:700]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", metavar="program", help=", ".join(NAMES))
    parser.add_argument("--tools", nargs="+", default=TOOLS, help="tools of compute-sanitizer")
    parser.add_argument("--within", type=float, default=60.0, help="seconds for all of them")
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
        watched = [tool, "--error-exitcode", str(FAILED), "--print-limit", "4", "--tool"]
        rounds: list[dict[tuple[str, str], list[str]]] = [{(name, "alone"): [] for name in names}]
        rounds += [{(name, kind): [*watched, kind] for kind in options.tools for name in names}]
        bad = False
        for several in rounds:
            started = {key: _started(before, key[0], folder) for key, before in several.items()}
            for (name, kind), process in started.items():
                begun = time.monotonic()
                try:
                    output, _ = process.communicate(timeout=max(0.1, end - begun))
                    status, said = process.returncode, ""
                except subprocess.TimeoutExpired:
                    process.kill()
                    output, status, said = process.communicate()[0], 1, f"not done within {options.within:g} s"
                ran = re.search(r"ran \d+ persistent kernels", output)
                fine = status == 0 and ran is not None
                bad |= not fine
                summary = ran[0] if kind == "alone" and ran is not None else said or told(output, status)
                print(f"{name:20} {kind:10} {'ok ' if fine else 'BAD'} {summary}", flush=True)
    return int(bad)


def _started(before: list[str], name: str, folder: str) -> subprocess.Popen[str]:
    cache = str(Path(folder) / name)
    return subprocess.Popen(
        [*before, sys.executable, "-m", "tests.targets.cuda.sanitized", "--child", name],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": "src:.", "DOVETAIL_CACHE": cache},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


if __name__ == "__main__":
    sys.exit(main())
