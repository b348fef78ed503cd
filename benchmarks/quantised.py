"""Models with weights in 8 and 4 bits beside f32: how close results are, and how much faster.

    PYTHONPATH=src:. python benchmarks/quantised.py [minilm bert decoder] [--tokens 1] [--rounds 7]

MiniLM has its own weights and `--tokens` tokens, as has BERT (base), whose weights are drawn; the decoder has 8 layers,
drawn weights and one token after 64 cached ones. One thread, its processor time, the least of rounds in which all take
turns. The cosine is that of all results against f32.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import dovetail
from dovetail import Graph
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.models import BertShape, LlamaShape, bert, llama_step
from dovetail.runtime.program import Program
from zoo import minilm
from zoo.fetch import FetchError, fetch
from zoo.inputs import tokens

WAYS: Mapping[str, Mapping[str, Any]] = {
    "f32": {},
    "int8 exact": {"quantize": "int8"},
    "int8 fast": {"quantize": "int8", "precision": "fast"},
    "int4 exact": {"quantize": "int4"},
    "int4 fast": {"quantize": "int4", "precision": "fast"},
}
SUBJECTS = ("minilm", "bert", "decoder")
_PAST = 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("subjects", nargs="*", default=list(SUBJECTS))
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    for name in given.subjects:
        try:
            graph, params, feeds = _subject(name, given.tokens)
        except FetchError as error:
            print(f"{name} is skipped: {error}")
            continue
        programs: dict[str, Program] = {
            way: dovetail.compile(graph, threads=1, params=params, **how) for way, how in WAYS.items()
        }
        best: dict[str, float] = {}
        for _ in range(given.rounds):
            for way, program in programs.items():
                best[way] = min(_seconds(program, feeds), best.get(way, np.inf))
        wanted = _flat(programs["f32"].run(feeds))
        for way, program in programs.items():
            found = _flat(program.run(feeds))
            cosine = found @ wanted / np.linalg.norm(found) / np.linalg.norm(wanted)
            print(
                f"{name:8} {way:11} {best[way] * 1e3:8.2f} ms   {best['f32'] / best[way]:5.2f} times f32"
                f"   cosine {cosine:.5f}",
                flush=True,
            )
    return 0


def _subject(name: str, count: int) -> tuple[Graph, Mapping[str, Array], Mapping[str, Array]]:
    if name == "minilm":
        graph, params = minilm.built(fetch("minilm"))
        # A text has two tokens around it.
        return graph, params, {key: array[:, :count] for key, array in tokens(1, (count + 2,), 30522).items()}
    if name == "bert":
        shape = BertShape(layers=12, hidden=768, heads=12, inner=3072)
        return _drawn(bert(shape, batch=1, seq=count))
    return _drawn(llama_step(LlamaShape(), batch=1, past=_PAST))


def _drawn(graph: Graph) -> tuple[Graph, Mapping[str, Array], Mapping[str, Array]]:
    rng = np.random.default_rng(0)

    def drawn(value: Value) -> Array:
        shape = tuple([size for size in value.shape if isinstance(size, int)])
        if value.dtype.is_integer:
            return rng.integers(0, 2, shape).astype(value.dtype.numpy)
        is_vector = len(shape) < 2
        return (rng.standard_normal(shape, np.float32) * (0.02 if not is_vector else 0.1) + is_vector).astype(
            np.float32
        )

    feeds, params = ({str(v.attrs["name"]): drawn(v) for v in some} for some in (graph.inputs, graph.parameters))
    return graph, params, feeds


def _seconds(program: Program, feeds: Mapping[str, Array]) -> float:
    program.run(feeds)
    start = time.thread_time()
    program.run(feeds)
    return time.thread_time() - start


def _flat(results: Mapping[str, Array]) -> Array:
    return np.concatenate([array.ravel().astype(np.float64) for array in results.values()])


if __name__ == "__main__":
    raise SystemExit(main())
