"""The first call of MiniLM in new processes of two trees, in turn: `import dovetail`, then compile, bind and one run.

    python benchmarks/first_call.py PYTHON SRC [PAIRS] [--model FILE] [--threads 2]

PYTHON and SRC are the interpreter and the `src` folder of the other tree. No process finds a cache. Each number is a
median in ms: `wall` by the clock, `cpu` of all threads, for machines with other work. The first pair is not counted.
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
import json, resource, sys, time

def now():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), used.ru_utime + used.ru_stime

times = [now()]
import dovetail
import numpy as np
times.append(now())
program = dovetail.compile(sys.argv[1], threads=int(sys.argv[2]))
ids = np.arange(16)[None]
given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
program.run({name: given[name] for name in json.loads(sys.argv[3])})
times.append(now())
kinds = list(enumerate(("wall", "cpu")))
parts = zip(("import", "first call"), times, times[1:])
print(json.dumps({f"{name} {kind}": 1e3 * (b[i] - a[i]) for name, a, b in parts for i, kind in kinds}))
"""
SRC = Path(__file__).resolve().parents[1] / "src"


def start(python: str, src: Path, model: Path, threads: int, inputs: str) -> Mapping[str, float]:
    """What a new process took."""
    with tempfile.TemporaryDirectory() as cache:
        environ = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environ |= {"DOVETAIL_CACHE": str(Path(cache, "empty")), "PYTHONPATH": str(src)}
        command = [python, "-c", CHILD, str(model), str(threads), inputs]
        done = subprocess.run(command, env=environ, cwd=cache, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main(python: str, src: Path, pairs: int, model: Path | None, threads: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        inputs = ["input_ids", "attention_mask"]
        if model is None:
            model = Path(folder, "minilm.onnx")
            model.write_bytes(encoder(MINILM, 1, 16).SerializeToString())
        else:
            inputs.append("token_type_ids")  # as the models of the zoo have
        trees = {"other": (python, src.resolve()), "this": (sys.executable, SRC)}
        found: dict[str, list[Mapping[str, float]]] = {name: [] for name in trees}
        for pair in range(pairs + 1):
            for name, (interpreter, of) in trees.items():
                took = start(interpreter, of, model.resolve(), threads, json.dumps(inputs))
                if pair:
                    found[name].append(took)
    columns = list(found["this"][0])
    medians = {name: [statistics.median([row[c] for row in rows]) for c in columns] for name, rows in found.items()}
    print("      " + "".join(f"{column:>18}" for column in columns))
    for name, numbers in medians.items():
        print(f"{name:<6}" + "".join(f"{number:>18.0f}" for number in numbers))
    ratios = [this / other for this, other in zip(medians["this"], medians["other"], strict=True)]
    print("ratio " + "".join(f"{ratio:>18.3f}" for ratio in ratios))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="the interpreter of the other tree")
    parser.add_argument("src", type=Path, help="its src folder")
    parser.add_argument("pairs", nargs="?", type=int, default=7, help="7 unless told")
    parser.add_argument("--model", type=Path, help="an ONNX file with the inputs of MiniLM; written here unless given")
    parser.add_argument("--threads", type=int, default=2, help="2 unless told")
    told = parser.parse_args()
    main(told.python, told.src, told.pairs, told.model, told.threads)
