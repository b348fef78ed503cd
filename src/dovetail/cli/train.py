"""`dovetail train`: the parameters of a model, trained on arrays of a file."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from dovetail.cli import hosts, place
from dovetail.cli.arrays import read_archive
from dovetail.cli.command import SCHEMA_VERSION, Answer, Command
from dovetail.cli.model import is_onnx
from dovetail.cli.options import asked_graph, ways
from dovetail.cli.train_options import ARGUMENTS, optimizer_of, schedule_of
from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.ir.graph import Graph
from dovetail.ir.whole_file import write_whole
from dovetail.progress import seconds_text
from dovetail.report.training_page import training_page
from dovetail.train import Metrics, Trainer
from dovetail.train.checkpoint import write_arrays
from dovetail.train.data import Examples, check_labels, examples
from dovetail.train.live import LiveCurve
from dovetail.train.log import Log
from dovetail.train.lora import DOWN, UP, lora, merged

BATCH, RANK = 32, 8


@dataclass(frozen=True, slots=True)
class Trained:
    """What training came to."""

    told: list[Metrics]
    steps: int
    seconds: float
    tested: Mapping[str, float]
    output: str
    summary: str = ""
    """Which weights were trained, and which were left as they are."""


def run(args: argparse.Namespace) -> Answer:
    _check(args)
    if hosts.is_asked(args):
        return hosts.supervised(args)
    hosts.meet(args)
    graph = asked_graph(args, train=True)
    trainer = _trainer(graph, args)
    data = _examples(trainer, args.data)
    test = None if args.test is None else _examples(trainer, args.test)
    size = _batch_size(trainer, args, data)
    steps = args.steps or args.epochs * (data.count // size)
    trainer.schedule = schedule_of(args, steps)
    _resume(trainer, args, steps)
    found = _train(trainer, args, data, size, steps)
    tested = {} if test is None else _tested(trainer, test, size)
    made = Trained(*found, tested, _written(trainer, graph, args), trainer.summary)
    _page(args, made)
    return Answer(json.dumps(as_dict(made), indent=2) if args.json else as_text(made, args.test))


def _check(args: argparse.Namespace) -> None:
    for flag in ("steps", "epochs", "batch", "accumulate", "every", "lora_rank"):
        number = getattr(args, flag)
        if number is not None and number < 1:
            raise OptionError(f"--{flag.replace('_', '-')} {number}", hint="write an integer from 1 on")
    if args.lora_rank is not None and not args.lora:
        raise OptionError("--lora-rank without --lora", hint="name the matrices to train beside: --lora PATTERN")
    if args.seed < 0:
        raise OptionError(f"--seed {args.seed}", hint="write an integer from 0 on")
    if args.resume and args.checkpoint is None:
        raise OptionError("--resume without --checkpoint", hint="name the file to go on from: --checkpoint FILE")
    if args.output is not None and Path(args.output).suffix not in (".onnx", ".safetensors"):
        raise OptionError(f"--output {args.output}", hint="end it in .onnx or .safetensors")
    if args.output is not None and args.output.endswith(".onnx") and not is_onnx(args.model):
        raise OptionError(f"--output {args.output}, and {args.model} is no ONNX model", hint="end it in .safetensors")


def _rank(args: argparse.Namespace) -> int:
    return RANK if args.lora_rank is None else args.lora_rank


def _trainer(graph: Graph, args: argparse.Namespace) -> Trainer:
    """The trainer of a graph, or of pairs of matrices beside its weights and of what --wrt names too."""
    wrt: Sequence[str] = args.wrt or ["*"]
    if args.lora:
        graph = lora(graph, args.lora, rank=_rank(args), seed=args.seed)
        wrt = [f"*{DOWN}", f"*{UP}", *(args.wrt or ())]
    mesh = place.meshed(args, lambda: _sized_step(graph, args))
    options = ways(args) | mesh | ({} if args.threads is None else {"threads": args.threads})
    return Trainer(
        graph,
        args.loss,
        optimizer_of(args),
        wrt=wrt,
        clip_norm=args.clip_norm,
        clip_value=args.clip_value,
        accumulate=args.accumulate,
        precision=args.precision,
        seed=args.seed,
        writes=hosts.is_first(args),
        **options,
    )


def _sized_step(graph: Graph, args: argparse.Namespace) -> Graph:
    """The step that a placement is chosen for: sizes that the model leaves open are those of one batch of the data."""
    step = place.step_of(graph, args.loss, optimizer_of(args))
    rows = (args.batch or BATCH * args.accumulate) // args.accumulate
    arrays = {name: a[:rows] for name, a in read_archive(args.data).items()}
    return place.sized(step, arrays)


def _examples(trainer: Trainer, path: str) -> Examples:
    found = examples(trainer.graph, read_archive(path), path)
    logits = next(iter(trainer.graph.outputs.values()))
    classes = logits.shape[-1] if logits.rank else 0
    if trainer.loss_name == "cross_entropy" and isinstance(classes, int):
        check_labels(found.arrays["labels"], classes, path)
    return found


def _batch_size(trainer: Trainer, args: argparse.Namespace, data: Examples) -> int:
    """The rows of a batch: those that the model fixes, or those of the command line."""
    fixed = {v.shape[0] for v in trainer.graph.inputs if v.rank and isinstance(v.shape[0], int)}
    size = args.batch or (max(fixed) * args.accumulate if fixed else BATCH * args.accumulate)
    if fixed and size != max(fixed) * args.accumulate:
        hint = f"leave --batch out: it is {max(fixed) * args.accumulate}"
        raise OptionError(f"--batch {size}, and the model takes {max(fixed)} rows", hint=hint)
    if size % args.accumulate:
        raise OptionError(f"--batch {size} in {args.accumulate} micro-batches", hint="choose a multiple")
    if data.count < size:
        raise OptionError(f"{data.count} examples, and a batch has {size}", hint=f"pass --batch {max(data.count, 1)}")
    return size


def _resume(trainer: Trainer, args: argparse.Namespace, steps: int) -> None:
    if not (args.resume or hosts.again(args)) or args.checkpoint is None:
        return
    # A launcher starts one command line again and again, also before the first checkpoint.
    if args.hosts is not None and not Path(args.checkpoint).exists():
        return
    trainer.load(args.checkpoint)
    if not hosts.again(args) and trainer.steps >= steps:
        raise OptionError(f"the checkpoint has done {trainer.steps} of {steps} steps", hint="ask for more of them")


def _train(
    trainer: Trainer, args: argparse.Namespace, data: Examples, size: int, steps: int
) -> tuple[list[Metrics], int, float]:
    first = trainer.steps
    stream: TextIO | None = sys.stderr
    live = None
    if stream is not None and not args.json and hosts.is_first(args):  # pyright: ignore[reportUnnecessaryComparison]
        live = LiveCurve(stream, trainer.graph.name, steps, first)
    began = time.monotonic()
    with ExitStack() as stack:
        log = None if args.log is None or not hosts.is_first(args) else stack.enter_context(Log(args.log, after=first))
        if live is not None:
            stack.callback(live.close)
        watched = hosts.reported(args)
        listeners: list[Callable[[Metrics], object]] = [one for one in (live, log, watched) if one is not None]
        batches = data.batches(size, seed=trainer.seed, first=first, steps=steps)
        told = trainer.fit(
            batches,
            callback=lambda metrics: [listener(metrics) for listener in listeners],
            checkpoint=args.checkpoint,
            every=args.every,
        )
    return told, trainer.steps, time.monotonic() - began


def _tested(trainer: Trainer, test: Examples, size: int) -> dict[str, float]:
    """The loss on examples that were not trained on, and the share that is classified right."""
    losses: list[float] = []
    right: list[float] = []
    rows: list[int] = []
    fixed = any(v.rank and isinstance(v.shape[0], int) for v in trainer.graph.inputs)
    for batch in test.in_order(size if not fixed else size // trainer.accumulate):
        count = len(next(iter(batch.values())))
        if fixed and rows and count != rows[0]:
            continue  # the model takes whole batches alone
        found = trainer.evaluate(batch)
        losses.append(float(np.squeeze(found["loss"])))
        rows.append(count)
        if trainer.loss_name == "cross_entropy":
            logits = found[next(iter(trainer.graph.outputs))]
            right.append(float(np.mean(logits.argmax(-1) == batch["labels"], dtype=np.float64)))
    told = {"loss": float(np.average(losses, weights=rows))}
    return told | ({"accuracy": float(np.average(right, weights=rows))} if right else {})


def _written(trainer: Trainer, graph: Graph, args: argparse.Namespace) -> str:
    """Write the trained weights of the graph, pairs of matrices added to theirs; the result is where they are."""
    target = args.output or _default_output(args)
    # Every host takes part in reading the weights.
    trained = trainer.params
    if not hosts.is_first(args):
        return target
    params = merged(trainer.graph, trained) if args.lora else trained
    moved = {n.removesuffix(DOWN).removesuffix(UP) for n in trainer.weights} | {*trainer.statistics}
    if target.endswith(".onnx"):
        from dovetail.frontends.onnx.file.weights import write_weights  # onnx takes a fifth of a second to import

        write_weights(args.model, target, {n: a for n, a in params.items() if n in moved})
    else:
        write_arrays(target, params)
    return target


def _default_output(args: argparse.Namespace) -> str:
    if is_onnx(args.model):
        return str(Path(args.model).with_suffix(".trained.onnx"))
    return "trained.safetensors"


def _page(args: argparse.Namespace, made: Trained) -> None:
    if args.html is None or not hosts.is_first(args) or not made.told:
        return
    facts = {
        "model": args.model,
        "data": args.data,
        "loss": args.loss or "the model's own",
        "optimizer": f"{args.optimizer}, rate {optimizer_of(args).lr:g}",
        "steps": str(made.steps),
        "time": seconds_text(made.seconds),
        "last loss": f"{made.told[-1].loss:.6g}",
        **{f"{name} on {args.test}": f"{number:.6g}" for name, number in made.tested.items()},
        "weights": made.output,
    }
    page = training_page(f"Training {args.model}", [m.loss for m in made.told], [m.rate for m in made.told], facts)
    write_whole(args.html, [page.encode()])


def as_text(made: Trained, test: str | None) -> str:
    """What training came to, for people."""
    last = f", last loss {made.told[-1].loss:.4f}" if made.told else ""
    lines = [f"{made.steps} steps in {seconds_text(made.seconds)}{last}", *made.summary.splitlines()]
    skipped = sum(m.skipped for m in made.told)
    if skipped:
        lines.append(f"{skipped} steps were left out: their gradients overflowed")
    if made.tested:
        told = ", ".join(f"{name} {number:.4f}" for name, number in made.tested.items())
        lines.append(f"{test}: {told}")
    return "\n".join([*lines, f"weights: {made.output}"])


def as_dict(made: Trained) -> dict[str, Any]:
    """What training came to as plain data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "steps": made.steps,
        "seconds": made.seconds,
        "losses": [m.loss if np.isfinite(m.loss) else None for m in made.told],
        "skipped": sum(m.skipped for m in made.told),
        "test": dict(made.tested),
        "output": made.output,
        "summary": made.summary,
    }


COMMAND = Command(
    "train",
    "Train the parameters of a model on examples, with a live curve of the loss, and write its weights.",
    ARGUMENTS,
    run,
)

__all__ = ["COMMAND", "Trained", "as_dict", "as_text"]
