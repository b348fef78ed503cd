"""How long the first call of MiniLM 1x16 takes in a new process: with an empty cache, and with one that knows it.

    python benchmarks/start.py [PROCESSES]

Each number is the median of several processes, cold and warm in turn. `import` is that of dovetail with NumPy and LLVM;
`first call` is what follows: compiling from the file, binding its weights, one run; `all` is both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dovetail.bench.transformers import MINILM, encoder

CHILD = """
import json, sys, time
started = time.perf_counter()
import dovetail
import numpy as np
imported = time.perf_counter()
program = dovetail.compile(sys.argv[1])
compiled = time.perf_counter()
ids = np.arange(16)[None]
program.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
called = time.perf_counter()
print(json.dumps({
    "import": imported - started, "compile": compiled - imported, "bind and run": called - compiled,
    "first call": called - imported, "all": called - started, "onnx": "onnx" in sys.modules,
}))
"""
COLUMNS = ("import", "compile", "bind and run", "first call", "all")
GOALS = {"cold": 1.0, "warm": 0.15}
"""Seconds that the first call may take."""


def start(model: Path, cache: Path, bytecode: Path) -> Mapping[str, float]:
    """What a new process took."""
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # Modules are compiled to bytecode as they are where a package is installed, but not in this tree.
    environ |= {"DOVETAIL_CACHE": str(cache), "PYTHONPYCACHEPREFIX": str(bytecode)}
    command = [sys.executable, "-c", CHILD, str(model)]
    return json.loads(subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout)


def main(processes: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "minilm.onnx"
        model.write_bytes(encoder(MINILM, 1, 16).SerializeToString())
        start(model, folder / "warm", folder / "bytecode")
        found: dict[str, list[Mapping[str, float]]] = {"cold": [], "warm": []}
        for index in range(processes):
            found["cold"].append(start(model, folder / f"cold{index}", folder / "bytecode"))
            found["warm"].append(start(model, folder / "warm", folder / "bytecode"))
    print(f"MiniLM 1x16 from an ONNX file of 90 MB; ms, median of {processes} processes")
    print("      " + "".join(f"{column:>14}" for column in COLUMNS) + "   goal of the first call")
    for kind, rows in found.items():
        medians = {column: statistics.median(row[column] for row in rows) for column in COLUMNS}
        shown = "".join(f"{medians[column] * 1e3:>14.0f}" for column in COLUMNS)
        met = "met" if medians["first call"] <= GOALS[kind] else "missed"
        print(f"{kind:<6}{shown}   {GOALS[kind] * 1e3:.0f}, {met}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("processes", nargs="?", type=int, default=5, help="how many of each kind, 5 unless told")
    main(parser.parse_args().processes)
