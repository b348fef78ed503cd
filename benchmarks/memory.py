"""What a bound program takes of memory: `python benchmarks/memory.py`.

Each model runs in a process of its own, which compiles and runs a small model first, so that the compiler and its
libraries do not count. `grown` is what more lies in memory after compiling, binding and one run; `share` is what of it
is not the arena, in units of the weights. `peak` is the most that lay in memory on the way.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

import dovetail
from dovetail.bench.transformers import BERT_BASE, MINILM, Encoder, encoder
from dovetail.frontends.safetensors import read_safetensors
from dovetail.models import bert, random_weights

MODELS = {"minilm_8x128": (MINILM, 8, 128), "bert_base_1x128": (BERT_BASE, 1, 128)}
SMALL = Encoder(1, 64, 2, 128, 100)


def resident(what: str = "VmRSS") -> int:
    """Bytes of this process in memory, or the most that there ever were."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{what}:")))


def ran(program: dovetail.Program, batch: int, length: int) -> dovetail.Program:
    given = [(v, (batch, length)[: v.rank]) for v in program.graph.inputs]
    program.run({str(v.attrs["name"]): np.ones(shape, v.dtype.numpy) for v, shape in given})
    return program


def measure(path: str, batch: int, length: int, weights: str) -> dict[str, int]:
    """In a process of its own. With a file of `weights`, MiniLM is built by hand and they are bound to it."""
    ran(dovetail.compile(Path(path).parent / "small.onnx"), 1, 8)
    before = resident()
    if weights:
        program = dovetail.compile(bert())
        program.bind(read_safetensors(weights))
    else:
        program = dovetail.compile(path)
    ran(program, batch, length)
    gc.collect()
    grown = resident() - before
    calls: Any = program._ready(program._binding)  # pyright: ignore[reportPrivateUsage]
    arena = sum(space.arena.nbytes + space.scratch.nbytes for space in calls.calls.spaces)
    held = sum(a.nbytes for a in program.params.values())
    return {"grown": grown, "weights": held, "arena": arena, "peak": resident("VmHWM") - before}


def alone(*given: str) -> dict[str, int]:
    done = subprocess.run([sys.executable, __file__, *given], check=True, capture_output=True, text=True)
    return cast("dict[str, int]", json.loads(done.stdout))


def line(name: str, found: dict[str, int]) -> str:
    share = (found["grown"] - found["arena"]) / found["weights"]
    sizes = "   ".join(f"{what} {found[what] / 1e6:8.1f}" for what in ("weights", "arena", "grown", "peak"))
    return f"{name:<28} {sizes}   share {share:5.2f}"


def main() -> None:
    print("megabytes")
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "small.onnx").write_bytes(encoder(SMALL, 1, 8).SerializeToString())
        for name, (of, batch, length) in MODELS.items():
            path = folder / f"{name}.onnx"
            path.write_bytes(encoder(of, batch, length).SerializeToString())
            print(line(f"{name}, a file", alone(str(path), str(batch), str(length), "")))
        weights = folder / "weights.safetensors"
        save_file(random_weights(bert()), weights)
        print(line("minilm_8x128, safetensors", alone(str(folder / "built"), "8", "128", str(weights))))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        path, batch, length, weights = sys.argv[1:]
        print(json.dumps(measure(path, int(batch), int(length), weights)))
    else:
        main()
