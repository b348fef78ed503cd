"""From a graph to the first training step, nothing kept from before: where the time goes.

    python benchmarks/train_compile.py [--models bert_12 gpt_12 resnet20 mlp decoder_28] [--threads 2] [--rounds 3]
                                       [--plans]

Each round of a model has its own process, without a cache on disk. Seconds are processor time, but for `wall`, from
the graph until it is compiled, and `first`, until the first step has run: on a machine that others use, only processor
time compares. LLVM runs in threads of its own, beside passes and the selection of later kernels, so that wall time is
less than the sum; `rest` has weights, state and bound memory. --plans adds digests of the plan, of the kernels and
of the results of three steps: two trees that print equal ones compile the same program.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from train_steps.works import Mlp, Resnet, Transformer, Work

MODELS: dict[str, Work | None] = {
    "mlp": Mlp(),
    "bert_12": Transformer(12, 256, 4, 30522, 512, 64, 8, 128, causal=False),
    "gpt_12": Transformer(12, 256, 4, 65, 64, 65, 12, 64, causal=True),
    "resnet20": Resnet(),
    "decoder_28": None,
}
PHASES = ("wall", "first", "cpu", "differentiate", "update", "passes", "plan", "kernels", "llvm", "rest")


class Seconds:
    """Processor time of phases; that of threads which compile apart from that of the caller."""

    def __init__(self) -> None:
        self.of: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    @contextmanager
    def counted(self, name: str) -> Generator[None]:
        started = time.thread_time()
        try:
            yield
        finally:
            with self._lock:
                self.of[name] += time.thread_time() - started

    def around(self, place: Any, attribute: str, name: str) -> None:
        """Count the calls of a function under a name."""
        function: Callable[..., Any] = getattr(place, attribute)

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.counted(name):
                return function(*args, **kwargs)

        setattr(place, attribute, counted)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plans", action="store_true", help="digests of plan, code and results")
    parser.add_argument("--one", choices=list(MODELS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one, options.threads, options.plans)))
        return 0
    print(f"{'seconds':12}" + "".join(f"{name:>14}" for name in PHASES))
    for model in options.models:
        flags = ["--threads", str(options.threads), *(["--plans"] if options.plans else [])]
        told: list[dict[str, Any]] = [
            json.loads(subprocess.check_output([sys.executable, __file__, "--one", model, *flags]).splitlines()[-1])
            for _ in range(options.rounds)
        ]
        medians = [statistics.median(t["seconds"].get(name, 0.0) for t in told) for name in PHASES]
        print(f"{model:12}" + "".join(f"{seconds:14.3f}" for seconds in medians), flush=True)
        if options.plans:
            print(f"{'':12}" + "  ".join(f"{name} {value}" for name, value in told[0]["plan"].items()), flush=True)
    return 0


def measured(model: str, threads: int, plans: bool) -> dict[str, Any]:
    """Seconds by phase of one model, and what it became."""
    # What is counted is imported before the first clock is read.
    import dovetail.runtime.compile
    import dovetail.targets.cpu.jit
    import dovetail.targets.cpu.native
    import dovetail.train.step
    import dovetail.train.trainer

    seconds = Seconds()
    seconds.around(dovetail.train.step, "value_and_grad", "differentiate")
    seconds.around(dovetail.train.trainer, "step_graph", "update")
    seconds.around(dovetail.runtime.compile, "lower", "passes")
    seconds.around(dovetail.runtime.compile, "make_plan", "plan")
    seconds.around(dovetail.targets.cpu.native, "build", "kernels")
    seconds.around(dovetail.targets.cpu.jit, "emit", "llvm")
    work = MODELS[model]
    prepare, run = _decoder(threads) if work is None else _training(work, threads)
    wall, cpu = time.perf_counter(), time.process_time()
    prepare()
    found = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, **seconds.of}
    results = [run()]
    found["first"] = time.perf_counter() - wall
    found["update"] = found.get("update", 0.0) - found.get("differentiate", 0.0)
    found["rest"] = found["cpu"] - sum(found.get(name, 0.0) for name in PHASES[3:-1])
    return {"seconds": found, "plan": _digests(prepare(), [*results, run(), run()]) if plans else {}}


def _training(work: Work, threads: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What makes a trainer, and what makes a step with it."""
    from train_steps.ours import graph
    from train_steps.works import BETAS, DECAY, EPS, RATE, batch, weights

    import dovetail
    from dovetail.train import AdamW

    x, labels = batch(work)
    drawn = weights(work)
    made: list[dovetail.train.Trainer] = []

    def prepare() -> Any:
        if not made:
            optimizer = AdamW(RATE, BETAS, EPS, DECAY)
            made.append(
                dovetail.train.Trainer(graph(work), None, optimizer, params=drawn, threads=threads, cache="off")
            )
        return made[0].program

    def run() -> Any:
        loss = made[0].step({"x": x, "labels": labels}).loss
        return [loss, *(array.tobytes() for _, array in sorted(made[0].params.items()))]

    return prepare, run


def _decoder(threads: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The same for the first call of a decoder of 28 layers."""
    import numpy as np

    import dovetail
    from dovetail.ir.literal import Array
    from dovetail.models import LlamaShape, llama
    from dovetail.models.weights import random_weights

    graph = llama(LlamaShape(layers=28, hidden=256, heads=4, kv_heads=2, inner=512, vocabulary=1000), batch=1, seq=32)
    drawn = random_weights(graph, 0)
    fed: dict[str, Array] = {}
    for value in graph.inputs:
        shape = [int(str(size)) for size in value.shape]
        fed[str(value.attrs["name"])] = np.ones(shape, value.dtype.numpy)
    made: list[dovetail.Program] = []

    def prepare() -> Any:
        if not made:
            made.append(dovetail.compile(graph, params=drawn, threads=threads, cache="off"))
        return made[0]

    return prepare, lambda: [array.tobytes() for _, array in sorted(made[0].run(fed).items())]


def _digests(program: Any, results: list[list[Any]]) -> dict[str, str]:
    from dovetail.plan.text import print_plan

    code = sorted({function.object_file for function in program._executable.built.functions})
    flat = [part if isinstance(part, bytes) else repr(part).encode() for result in results for part in result]
    return {
        "kernels": str(len(program.plan.phase("run"))),
        "modules": str(len(code)),
        "arena": str(program.plan.arena_size),
        "plan": _digest([print_plan(program.plan).encode()]),
        "code": _digest(code),
        "results": _digest(flat),
    }


def _digest(parts: list[bytes]) -> str:
    found = hashlib.blake2b(digest_size=6)
    for part in parts:
        found.update(part)
    return found.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
