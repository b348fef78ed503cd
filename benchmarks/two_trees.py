"""Speed of this tree beside that of another one: every case in turn, in pairs, as ratios (other time over ours).

    PYTHONPATH=src:. python benchmarks/two_trees.py OTHER [--target cpu|cuda] [--cases NAME ...] [--pairs 7]
        [--seconds 0.5] [--threads 2] [--cpu] [--least 0.98]

OTHER is the root of another checkout (`git worktree add build/other main`). Each tree has a process of its own with
its own `src`, `benchmarks` and cases, without a cache; the two take turns, and who begins a pair alternates. A line
tells the median of the ratios of all pairs, the medians of both times, and the seconds of both from a model to its
first result; the last one the geometric mean and the cases below --least. --cpu counts processor time, for machines
that others use too. Cases are the workloads of `dovetail bench`, models of the zoo that were fetched, training steps,
and tokens and prompts of decoders; on `cuda` models in f16 and f32, decoders in bf16, and training steps.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

HERE = Path(__file__).resolve().parents[1]
Run = Callable[[], object]
Settle = Callable[[], None]
FILES = ("q8_0", "q4_k_m")
PRECISIONS: tuple[Literal["exact", "fast"], ...] = ("exact", "fast")
CACHED, PROMPT, FILE_LAYERS = 512, 64, 4
GPU_MODELS = ("minilm_1x16", "minilm_1x128", "minilm_32x128", "bert_32x128", "resnet50_1", "resnet50_32", "unet_block")
GPU_F32 = ("minilm_1x128", "bert_1x128", "resnet50_1")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the root of another checkout")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cases", nargs="*", help="those whose names begin so; all of them without")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn, about")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds after which no further case begins")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="processor time")
    parser.add_argument("--least", type=float, default=0.98)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return 0
    trees = {"this": HERE, "other": options.other.resolve()}
    asked = {name: Asked(tree, options) for name, tree in trees.items()}
    names = [name for name in asked["this"]({"do": "cases"})["cases"] if _wanted(name, options.cases)]
    ratios: dict[str, float] = {}
    end = time.monotonic() + options.within
    for name in names:
        if time.monotonic() > end:
            print(f"late: {name} and those after it were not measured")
            break
        if told := compared(name, asked, options):
            ratios[name] = told
    if ratios:
        low = {name: f"{ratio:.3f}" for name, ratio in ratios.items() if ratio < options.least}
        mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
        print(
            f"trees target={options.target} cases={len(ratios)} geometric_mean={mean:.3f} below_{options.least}={low}"
        )
    return 0


class Asked:
    """The process of a tree, which answers a line of JSON with another one."""

    def __init__(self, tree: Path, options: argparse.Namespace) -> None:
        paths = [str(tree / part) for part in ("src", "", "benchmarks", "benchmarks/cuda")]
        flags = ["--target", options.target, "--threads", str(options.threads), *(["--cpu"] if options.cpu else [])]
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(tree), "--serve", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "DOVETAIL_CACHE": "off", "PYTHONSAFEPATH": "1"},
        )

    def __call__(self, words: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of a tree ended with {self.process.wait()}")
        return json.loads(line)


def compared(name: str, asked: Mapping[str, Asked], options: argparse.Namespace) -> float | None:
    """Measure a case in both trees, and print its line: the ratio of their times, above 1 where this tree is faster."""
    first: dict[str, float] = {}
    for tree, ask in asked.items():
        told = ask({"do": "prepare", "case": name})
        if "refused" in told:
            print(f"{name} {tree}: {told['refused']}", flush=True)
            return None
        first[tree] = told["first"]
    times: dict[str, list[float]] = {tree: [] for tree in asked}
    for pair in range(options.pairs):
        for tree in list(asked)[:: 1 if pair % 2 else -1]:
            times[tree].append(asked[tree]({"do": "turn", "seconds": options.seconds})["time"])
    ratio = statistics.median(b / a for a, b in zip(times["this"], times["other"], strict=True))
    this, other = (statistics.median(times[tree]) * 1e3 for tree in ("this", "other"))
    print(
        f"trees {name} target={options.target} ratio={ratio:.3f} ms={this:.4g} other_ms={other:.4g} "
        f"first_call={first['this']:.2f} other_first_call={first['other']:.2f}",
        flush=True,
    )
    return ratio


def _wanted(name: str, begins: list[str] | None) -> bool:
    return not begins or any(name.startswith(begin) for begin in begins)


def serve(options: argparse.Namespace) -> None:
    """The cases of a tree: `cases` names them, `prepare` makes one, `turn` measures it for some seconds."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    known = dict(gpu_cases() if options.target == "cuda" else cpu_cases(options.threads))
    clock = time.process_time if options.cpu else time.perf_counter
    run: Run = dict
    settle: Settle = _settle_cuda if options.target == "cuda" else lambda: None
    for line in sys.stdin:
        words = json.loads(line)
        answer: dict[str, Any]
        try:
            if words["do"] == "cases":
                answer = {"cases": list(known)}
            elif words["do"] == "prepare":
                run = dict
                started = time.perf_counter()
                run = known[words["case"]]()
                run()
                settle()
                answer = {"first": time.perf_counter() - started}
                for _ in range(3):
                    run()
            else:
                answer = {"time": _time(run, settle, words["seconds"], clock)}
        except Exception as error:  # a case that fails is an answer, whatever its type
            answer = {"refused": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(answer), file=answers, flush=True)


def _time(run: Run, settle: Settle, seconds: float, clock: Callable[[], float]) -> float:
    """The time of a run: the median of groups of runs in so many seconds."""
    settle()
    begun = time.perf_counter()
    run()
    settle()
    group = max(1, int(seconds / 16 / max(time.perf_counter() - begun, 1e-6)))
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < until:
        started = clock()
        for _ in range(group):
            run()
        settle()
        times.append((clock() - started) / group)
    return statistics.median(times)


def _settle_cuda() -> None:
    torch: Any = importlib.import_module("torch")
    torch.cuda.synchronize()


Cases = Iterator[tuple[str, Callable[[], Run]]]


def cpu_cases(threads: int) -> Cases:
    import dovetail
    from dovetail.bench.workloads import WORKLOADS, feeds_for

    def workload(name: str) -> Run:
        model = WORKLOADS[name].build()
        feeds = feeds_for(model)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(model.SerializeToString())
            program = dovetail.compile(path, threads=threads)
            program.run(feeds)
        return lambda: program.run(feeds)

    for name in WORKLOADS:
        yield f"workload/{name}", lambda name=name: workload(name)

    from zoo.fetch import HOME
    from zoo.models import models

    def model(of: Any) -> Run:
        program = dovetail.compile(next(iter((HOME / of.pin).rglob(of.file))), threads=threads)
        feeds = {**of.feeds[0], **of.fixed}
        return lambda: program.run(feeds)

    for of in models():
        if (HOME / of.pin).exists() and not of.fixed:
            yield f"model/{of.name}", lambda of=of: model(of)

    from train_steps.ours import prepare
    from train_steps.works import WORKS

    for name, work in WORKS.items():
        yield f"train/{name}", lambda work=work: prepare(work, threads)

    from decode_steps.files import write_qwen3

    def decoder(kind: str, tokens: int, precision: Literal["exact", "fast"]) -> Run:
        path = HERE / "build" / "decoders" / f"{kind}_{FILE_LAYERS}.gguf"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_qwen3(path, kind, FILE_LAYERS)
        session = dovetail.language.LanguageModel(str(path), threads=threads, precision=precision).session()
        before = CACHED if tokens == 1 else 0
        if before:
            session.extend(list(range(100, 100 + before)))

        def step() -> None:
            session.extend(list(range(200, 200 + tokens)))
            session.trim(before)

        return step

    for kind in FILES:
        for precision in PRECISIONS:
            for tokens in (1, PROMPT):
                name = f"decoder/{kind}_{precision}_{tokens}"
                yield name, lambda k=kind, t=tokens, p=precision: decoder(k, t, p)


def gpu_cases() -> Cases:
    import dovetail
    from dovetail.bench.workloads import feeds_for

    decode: Any
    models: Any
    dtypes: Any
    decode, models, dtypes = (importlib.import_module(name) for name in ("decode", "models", "converted"))

    def model(name: str, dtype: str) -> Run:
        made = models.MODELS[name][1]()
        feeds = dtypes.narrowed(feeds_for(made), dtype)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(dtypes.converted(made, dtype).SerializeToString())
            program = dovetail.compile(path, target="cuda")
            program.run(feeds)
        there = program.to_device(feeds)
        return lambda: program.run(there, outputs="device")

    def decoder(name: str, cached: int, tokens: int) -> Run:
        of = decode.SHAPES[name]
        graph = decode.step_graph(of, tokens)
        program = cast(Any, dovetail.compile)(graph, target="cuda").bind(decode.weights_of(graph))
        there = program.to_device(decode.feeds_of(of, cached, tokens))
        return lambda: program.run(there, outputs="device")

    from train_steps import ours
    from train_steps.works import BETAS, DECAY, EPS, RATE, WORKS, batch, weights

    def training(work: Any) -> Run:
        optimizer = dovetail.train.AdamW(RATE, BETAS, EPS, DECAY)
        trainer = dovetail.train.Trainer(ours.graph(work), None, optimizer, params=weights(work), target="cuda")
        x, labels = batch(work)
        return lambda: trainer.step({"x": x, "labels": labels}).loss

    for name in GPU_MODELS:
        yield f"model/{name}_f16", lambda name=name: model(name, "f16")
    for name in GPU_F32:
        yield f"model/{name}_f32", lambda name=name: model(name, "f32")
    shapes: list[str] = [*decode.SHAPES]
    for name in shapes:
        yield f"decoder/{name}_{CACHED}", lambda name=name: decoder(name, CACHED, 1)
        yield f"prompt/{name}_{CACHED}", lambda name=name: decoder(name, 0, CACHED)
    for name in ("mlp", "bert_8x128", "gpt_8x256"):
        yield f"train/{name}", lambda name=name: training(WORKS[name])


if __name__ == "__main__":
    sys.exit(main())
