"""Builds a BERT-style and a Llama-style model, explains both, runs them, and checks the numbers against float64."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import dovetail
from dovetail.models import BertShape, LlamaShape, bert, llama, random_weights

Arrays = Mapping[str, NDArray[Any]]
T = TypeVar("T")

TOLERANCE = 1e-4
"""How far float32 may lie from float64, relative to the largest output."""


def encoder() -> tuple[dovetail.Graph, Arrays]:
    """A BERT-style encoder and a batch of two sentences, the second of them padded."""
    shape = BertShape(layers=4, hidden=128, heads=4, inner=512, vocabulary=1000, positions=64)
    rng = np.random.default_rng(1)
    ids = rng.integers(0, shape.vocabulary, (2, 32))
    mask = np.ones((2, 32), np.int64)
    mask[1, 20:] = 0
    return bert(shape), {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": mask}


def decoder() -> tuple[dovetail.Graph, Arrays]:
    """A Llama-style decoder with grouped heads and a prompt."""
    shape = LlamaShape(layers=4, hidden=128, heads=8, kv_heads=2, inner=384, vocabulary=1000)
    return llama(shape), {"input_ids": np.random.default_rng(2).integers(0, shape.vocabulary, (1, 48))}


def timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def show(title: str, graph: dovetail.Graph, feeds: Arrays) -> None:
    """Compile, explain, run and check one model. Its sizes are symbols until the arrays say what they are."""
    print(f"=== {title}\n")
    weights = random_weights(graph)
    sizes = dict(zip("bs", feeds["input_ids"].shape, strict=True))
    program, compiling = timed(lambda: dovetail.compile(graph, target="reference", params=weights, assume_sizes=sizes))
    print(program.report)
    special, specialising = timed(lambda: program.specialize(sizes))
    outputs, running = timed(lambda: special.run(feeds))
    print(f"\ncompiled in {compiling:.2f} s, for {sizes} in {specialising:.2f} s, and run in {running:.2f} s")
    judged = dovetail.evaluate(graph, feeds, lift=True, params=weights)
    for name, wanted in judged.items():
        error = np.abs(outputs[name] - wanted).max() / np.abs(wanted).max()
        print(f"{name} {list(wanted.shape)}: {error:.1e} from the float64 interpreter, relative to the largest")
        if not error < TOLERANCE:
            raise SystemExit(f"{title}: {name} is wrong")
    print()


def main() -> None:
    show("A BERT-style encoder", *encoder())
    show("A Llama-style decoder", *decoder())
    print(
        """Where to look next
  dovetail explain llama --target cpu        the report of a larger model, for another target
  dovetail why bert 'layers.0 softmax'       every rule that was tried at one node
  dovetail show llama:layers=1 --stage fused the graph as text, at any stage
  dovetail catalog swiglu                    what a fused op is made of and when it applies
  examples/declare_an_op.py                  a fused op of your own in ten lines
  examples/read_a_report.py                  reports as data, and as gates"""
    )


if __name__ == "__main__":
    main()
