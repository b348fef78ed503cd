"""CPU seconds of loading and compiling ONNX files with very many nodes: a chain of 20,000, and a sum of 10,000 inputs.

python benchmarks/large_graphs.py
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import TensorProto, helper

import dovetail

MOST_SECONDS = 3.0
"""What each may take on one core of a current server."""


def model(nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], output: str) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in inputs]
    made = helper.make_tensor_value_info(output, TensorProto.FLOAT, [4])
    graph = helper.make_graph(nodes, "large", given, [made])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def chain(count: int) -> onnx.ModelProto:
    names = [f"v{i}" for i in range(count + 1)]
    pairs = enumerate(itertools.pairwise(names))
    nodes = [helper.make_node("Relu" if i % 2 else "Neg", [x], [y]) for i, (x, y) in pairs]
    return model(nodes, names[:1], names[-1])


def total(count: int) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(count)]
    return model([helper.make_node("Sum", names, ["y"])], names, "y")


def measured(made: onnx.ModelProto, path: Path) -> tuple[float, float]:
    """Seconds to load and to compile a model, with nothing from the cache."""
    path.write_bytes(made.SerializeToString())
    started = time.process_time()
    graph = dovetail.load(path)
    loaded = time.process_time()
    dovetail.compile(graph, cache="off")
    return loaded - started, time.process_time() - loaded


def main() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        measured(chain(2), path)  # imports
        measured(total(2), path)
        for name, made in (("chain of 20,000 nodes", chain(20_000)), ("sum of 10,000 inputs", total(10_000))):
            load, compile = measured(made, path)
            print(f"{name}: load {load:.2f} s, compile {compile:.2f} s, together {load + compile:.2f} s of CPU")
            if load + compile > MOST_SECONDS:
                print(f"  above {MOST_SECONDS} s")


if __name__ == "__main__":
    main()
