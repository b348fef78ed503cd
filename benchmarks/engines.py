"""Greedy fusion and the e-graph compared on whole models: predicted cost, kernels, and measured time.

Run it as `python -m benchmarks.engines` in the root of the tree. Without arguments all models; words pick those whose
names have one of them. `--measure` runs both programs in turn.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dovetail
from dovetail import Graph, Value
from dovetail.models import BertShape, LlamaShape, bert, llama, llama_step, resnet
from dovetail.runtime.compile import compilation, make_request
from zoo import minilm
from zoo.fetch import FetchError, fetch
from zoo.inputs import tokens
from zoo.model import Model
from zoo.models import models

Array = NDArray[Any]
ENGINES = ("greedy", "egraph")
LIMIT_SLOWER = 0.02
LEAST_SECONDS, MOST_SECONDS = 4.0, 40.0
LEAST_PAIRS, ENOUGH_PAIRS = 11, 41

HOW = """Costs are predicted seconds: `greedy` and `chosen` by the measure of the search (work on weights alone
does not count), before the target's own passes; `predicted` are those of all kernels of a run in the final program.
Optimise is the wall clock of all passes in this process, after a small graph that is not counted. Times are medians of
runs that take turns, cache off, weights drawn at random where a model has none; `±` is half the interquartile
range, and the last column is the median of the ratios of neighbouring runs, with its 95 % confidence interval. Pairs of
runs are added until that interval is on one side of the limit, which is 2 % above greedy, or
time is up: then it says UNSURE."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model with what it is run on."""

    graph: Graph
    feeds: Mapping[str, Array]
    params: Mapping[str, Array] = field(default_factory=dict[str, Array])


@dataclass(frozen=True, slots=True)
class Found:
    """What both engines make of a model."""

    name: str
    greedy: float
    chosen: float
    predicted: tuple[float, float]
    kernels: tuple[int, int]
    optimise: tuple[float, float]
    measured: tuple[list[float], list[float]] | None = None

    @property
    def less(self) -> float:
        return 1 - self.chosen / self.greedy if self.greedy else 0.0


def subjects() -> Iterator[tuple[str, Callable[[], Subject]]]:
    """Every model by name, made on first use."""
    base = BertShape(layers=12, hidden=768, heads=12, inner=3072)
    yield "minilm 1x16", partial(_minilm, 16)
    yield "minilm 1x128", partial(_minilm, 128)
    yield "minilm exported", _exported
    yield "bert-base 1x128", lambda: _drawn(bert(base, batch=1, seq=128))
    yield "llama 8 layers 1x128", lambda: _drawn(llama(LlamaShape(), batch=1, seq=128))
    yield "llama 8 layers step", lambda: _drawn(llama_step(LlamaShape(), batch=1, past=256))
    yield "llama 28 layers", lambda: _drawn(llama(_small(28), batch=1, seq=32))
    yield "llama 80 layers", lambda: _drawn(llama(_small(80), batch=1, seq=32))
    yield "qwen 28 layers", lambda: _drawn(llama(_small(28, normed=True), batch=1, seq=32))
    yield "resnet-50", lambda: _drawn(resnet(batch=1, image=224))
    for model in models():
        yield model.name, partial(_file, model)


def _small(layers: int, *, normed: bool = False) -> LlamaShape:
    return LlamaShape(layers=layers, hidden=256, heads=4, kv_heads=2, inner=688, vocabulary=1000, normed_heads=normed)


def _minilm(length: int) -> Subject:
    graph, params = minilm.built(fetch("minilm"))
    return Subject(graph, tokens(1, (length,), 30522), params)


def _exported() -> Subject:
    path = minilm.exported(fetch("minilm"))
    if isinstance(path, str):
        raise FetchError(path)
    return Subject(dovetail.load(path), tokens(1, (24, 17), 30522))


def _file(model: Model) -> Subject:
    return Subject(dovetail.load(fetch(model.pin) / model.file, fixed=model.fixed), model.feeds[0])


def _drawn(graph: Graph) -> Subject:
    rng = np.random.default_rng(0)

    def drawn(value: Value) -> Array:
        shape = tuple(s for s in value.shape if isinstance(s, int))
        if value.dtype.is_integer:
            return rng.integers(0, 2, shape).astype(value.dtype.numpy)
        low = 0.5 if len(shape) < 2 or max(shape) == np.prod(shape) else 0.0
        return (rng.standard_normal(shape, np.float32) * 0.02 + low).astype(value.dtype.numpy)

    feeds, params = ({str(v.attrs["name"]): drawn(v) for v in some} for some in (graph.inputs, graph.parameters))
    return Subject(graph, feeds, params)


def compared(name: str, subject: Subject, *, measure: bool) -> Found:
    """Both engines on one model."""
    greedy, searched = (compilation(subject.graph, make_request(target="cpu", engine=e)) for e in ENGINES)
    decided = searched.lowered.state.decided
    assert decided is not None
    reports = (greedy.report(), searched.report())
    return Found(
        name,
        decided.search.greedy,
        decided.search.chosen,
        (reports[0].predicted_seconds, reports[1].predicted_seconds),
        tuple(sum(k.phase == "run" for k in r.kernels) for r in reports),  # pyright: ignore[reportArgumentType]
        tuple(sum(p.seconds for p in r.passes) for r in reports),  # pyright: ignore[reportArgumentType]
        in_turn(subject) if measure else None,
    )


def in_turn(subject: Subject) -> tuple[list[float], list[float]]:
    """Seconds of runs of both programs, which take turns so that a change of the machine's speed meets both."""
    params = dict(subject.params) or None
    programs = [
        dovetail.compile(subject.graph, target="cpu", engine=engine, params=params, cache="off") for engine in ENGINES
    ]
    times: tuple[list[float], list[float]] = ([], [])
    for program in programs:
        program.run(subject.feeds)
    begun = time.perf_counter()
    while not _is_enough(times, time.perf_counter() - begun):
        order = (0, 1) if len(times[1]) % 2 else (1, 0)
        for index in order:
            started = time.perf_counter()
            programs[index].run(subject.feeds)
            times[index].append(time.perf_counter() - started)
    return times


def _is_enough(times: tuple[list[float], list[float]], seconds: float) -> bool:
    """Whether more runs would tell nothing new: it is clear which side of the limit they lie on, or time is up."""
    count = len(times[1])
    if count < LEAST_PAIRS or (seconds < LEAST_SECONDS and count < ENOUGH_PAIRS):
        return False
    return seconds > MOST_SECONDS or quotient(times).verdict != "UNSURE"


@dataclass(frozen=True, slots=True)
class Quotient:
    """The median of the quotients of neighbours in time, so that what slows both does not count."""

    median: float
    low: float
    high: float
    """The 95 % confidence interval of the median."""

    @property
    def verdict(self) -> str:
        if self.low > 1 + LIMIT_SLOWER:
            return "SLOWER"
        return "UNSURE" if self.high > 1 + LIMIT_SLOWER else ""


def quotient(times: tuple[list[float], list[float]]) -> Quotient:
    """How much longer the second of two programs takes; the interval is that of the sign test."""
    found = sorted(b / a for a, b in zip(*times, strict=True))
    half = round(0.98 * len(found) ** 0.5)
    middle = len(found) // 2
    return Quotient(statistics.median(found), found[max(0, middle - half)], found[min(len(found) - 1, middle + half)])


def show(found: Found) -> None:
    predicted = " ".join(f"{seconds * 1e3:9.3f}" for seconds in found.predicted)
    line = (
        f"{found.name:22} {found.greedy * 1e3:9.3f} {found.chosen * 1e3:9.3f} {100 * found.less:6.2f} %  {predicted}  "
        f"{found.kernels[0]:5} {found.kernels[1]:5}  {found.optimise[0]:6.2f} {found.optimise[1]:6.2f}"
    )
    if found.measured is not None:
        medians = [statistics.median(times) for times in found.measured]
        spreads = [(q[2] - q[0]) / 2 for q in (statistics.quantiles(times, n=4) for times in found.measured)]
        told = "  ".join(f"{m * 1e3:9.3f} ±{s * 1e3:.3f}" for m, s in zip(medians, spreads, strict=True))
        ratio = quotient(found.measured)
        line += f"  {told}  {ratio.median:6.3f} [{ratio.low:.3f}, {ratio.high:.3f}] {ratio.verdict}".rstrip()
    if found.chosen > found.greedy * (1 + 1e-9):
        line += "  ABOVE GREEDY"
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts of names; a model is looked at if its name has one")
    parser.add_argument("--measure", action="store_true", help="run both programs too")
    args = parser.parse_args()
    compilation(bert(BertShape(layers=1), batch=1, seq=8), make_request(target="cpu", engine="egraph"))
    print(f"{platform.machine()}, Python {platform.python_version()}, target cpu; costs and times in ms, optimise in s")
    columns = [
        "model".ljust(22),
        "greedy".rjust(9),
        "chosen".rjust(9),
        "less".rjust(8) + " ",
        "predicted".center(19) + " ",
    ]
    columns += ["kernels".center(11) + " ", "optimise".center(13)]
    columns += ["measured".center(42), "egraph / greedy"] if args.measure else []
    print(" ".join(columns))
    above = 0
    for name, made in subjects():
        if args.parts and not any(part in name for part in args.parts):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = compared(name, made(), measure=args.measure)
        except (FetchError, OSError, zipfile.BadZipFile) as error:
            print(f"{name:22} is left out: {error}", file=sys.stderr)
            continue
        show(found)
        above += found.chosen > found.greedy * (1 + 1e-9)
    print(HOW)
    return int(above > 0)


if __name__ == "__main__":
    sys.exit(main())
