"""Answers questions by meaning, with the real weights of MiniLM: `make demo` fetches them and runs this.

    python examples/demo.py FOLDER

FOLDER has model.safetensors, config.json and tokenizer.json. Without it, built-in models are shown instead.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import built_in_models
import numpy as np
from numpy.typing import NDArray

import dovetail
from dovetail import Report
from dovetail.frontends.safetensors import read_safetensors
from dovetail.models import BertShape, bert, bert_shape, bert_weights

Array = NDArray[Any]

SENTENCES = (
    "The cat fell asleep on the warm windowsill.",
    "A dovetail joint holds two boards together without nails.",
    "Sharpen the chisel before you cut the tails.",
    "The glue needs a night to dry before the clamps come off.",
    "Oak is heavier than pine and harder to plane.",
    "The train to the coast leaves at half past seven.",
    "All flights were cancelled because of the storm.",
    "You can rent a bicycle at the station.",
    "The ferry takes two hours to reach the island.",
    "Traffic was slow on the motorway this morning.",
    "Whisk the eggs with sugar until they are pale.",
    "Let the dough rest in a cool place for an hour.",
    "Add a pinch of salt to bring out the sweetness.",
    "The soup tastes better on the second day.",
    "Roast the vegetables until their edges turn brown.",
    "Her fever went down after two days in bed.",
    "The doctor told him to drink more water.",
    "A short walk after lunch is good for the heart.",
    "He sprained his ankle while playing football.",
    "The vaccine protects most people for a year.",
    "The orchestra played the slow movement beautifully.",
    "She practises the violin for two hours every evening.",
    "The band released a new album last week.",
    "He hums old songs while he washes the dishes.",
    "Interest rates rose for the third time this year.",
    "The company sold more cars than it could build.",
    "Put aside a little money every month.",
    "The shop gives a discount to students.",
    "A compiler turns source code into machine instructions.",
    "The program crashed because it ran out of memory.",
    "Fusing two loops saves a trip to main memory.",
    "Tests caught the mistake before anyone noticed.",
    "The telescope found a planet around a distant star.",
    "Bees tell each other where the flowers are by dancing.",
    "Glaciers have carved this valley over thousands of years.",
    "It rained all night and the river is rising.",
)
REPORT = Path("build/report.html")
QUESTIONS = (
    "How do I join wood without screws?",
    "My software is slow because it waits for data",
    "What can I do to stay healthy?",
    "ways to get to the seaside",
    "I want to bake a cake",
)


@dataclass(frozen=True, slots=True)
class Encoder:
    """Sentences as directions: the mean of a program's hidden states over the words, scaled to length one."""

    program: dovetail.Program
    tokenizer: Any
    shape: BertShape

    def words(self, sentences: Sequence[str]) -> Mapping[str, Array]:
        """The ids of word pieces, and which of them are there."""
        found = self.tokenizer.encode_batch(list(sentences))
        ids, mask = (np.array([getattr(f, part) for f in found], np.int64) for part in ("ids", "attention_mask"))
        return {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": mask}

    def __call__(self, sentences: Sequence[str]) -> Array:
        feeds = self.words(sentences)
        states = self.program.run(feeds)["last_hidden_state"]
        there = feeds["attention_mask"][..., None].astype(np.float32)
        mean = (states * there).sum(1) / there.sum(1)
        return mean / np.linalg.norm(mean, axis=-1, keepdims=True)


def encoder(folder: Path) -> Encoder:
    """The model in a folder, compiled."""
    from tokenizers import Tokenizer

    shape = bert_shape(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    weights = bert_weights(read_safetensors(folder / "model.safetensors"), shape)
    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    return Encoder(dovetail.compile(bert(shape), params=weights), tokenizer, shape)


def main(folder: Path) -> None:
    started = time.perf_counter()
    encode = encoder(folder)
    print(f"MiniLM from {folder / 'model.safetensors'}, compiled in {time.perf_counter() - started:.2f} s\n")

    batch, length = encode.words(SENTENCES)["input_ids"].shape
    print(screen(encode.program.specialize({"b": batch, "s": length}).report))
    print(a_miss())

    started = time.perf_counter()
    known = encode(SENTENCES)
    took = time.perf_counter() - started
    print(f"\n{len(SENTENCES)} sentences encoded in {took:.2f} s, {took / len(SENTENCES) * 1e3:.0f} ms each\n")
    for question, direction in zip(QUESTIONS, encode(QUESTIONS), strict=True):
        likeness = known @ direction
        print(f"? {question}")
        for index in np.argsort(-likeness)[:3]:
            print(f"    {likeness[index]:.2f}  {SENTENCES[index]}")
    show(bert(encode.shape, batch=batch, seq=length), inputs=encode.words(SENTENCES), params=encode.program.params)
    print(NEXT)


def screen(report: Report) -> str:
    """Return the lines of a report that say what fused, what was missed and what takes the time."""
    first, second, *rest = str(report).splitlines()
    kept = [line for line in rest if line.startswith(("FUSED", "MISSED", "KERNEL"))]
    return "\n".join([first, second, *kept])


def a_miss() -> str:
    """Return what is said of an attention that is missed, and what its change would bring.

    MiniLM misses nothing. Here keys that are padding score -1000, which is not safe: others can be lower.
    """
    builder = dovetail.Builder("attention", lines=False)
    q, k, v = (builder.input(name, dovetail.dtypes.f32[2, 4, 512, 32]) for name in "qkv")
    keep = builder.input("keep", dovetail.dtypes.bool_[2, 1, 1, 512])
    scores = dovetail.ops.where(keep, q @ dovetail.ops.permute(k, order=(-1, -2)) * 32**-0.5, -1000.0)
    builder.output("y", dovetail.library.softmax(scores) @ v)
    (missed,) = dovetail.explain(builder.graph()).missed
    return f"""
MiniLM misses nothing. An attention whose padding scores -1000 does:
MISSED {missed.rule}: costs {missed.seconds * 1e3:.2f} ms a run
       {missed.reason}: {missed.message}
       with -inf the three kernels are one; `dovetail what-if MODEL` finds that out, and prices it"""


def show(graph: dovetail.Graph, **measured: Any) -> None:
    """Write the report as a page."""
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    print(f"\nThe report is {dovetail.reports.write_report(graph, REPORT, runs=5, **measured)}: open it in a browser.")


NEXT = """
Where to look next
  dovetail explain model.onnx --html report.html
                                             what fuses in a model of yours, what does not, and why
  dovetail run model.onnx --random 0 --check onnxruntime
  examples/built_in_models.py                models built in Python, judged by float64
  examples/declare_an_op.py                  a fused op of your own in ten lines
  examples/read_a_report.py                  reports as data, and as gates"""


if __name__ == "__main__":
    asked = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if asked is not None and (asked / "model.safetensors").is_file():
        main(asked)
    else:
        missing = f"{asked} has no model" if asked is not None else "no folder with a model was given"
        print(f"{missing}, so that built-in models with random weights are shown instead of MiniLM\n")
        built_in_models.main()
        show(bert(batch=1, seq=128))
