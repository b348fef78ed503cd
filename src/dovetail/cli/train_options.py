"""The options of `dovetail train`, and the optimizer and schedule that they name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from dovetail.cli import hosts, place
from dovetail.cli.command import Argument
from dovetail.cli.options import COMPILING, JSON
from dovetail.errors import OptionError
from dovetail.train import (
    LOSSES,
    Optimizer,
    Schedule,
    constant,
    cosine,
    linear,
    warm_up,
)
from dovetail.train.model import OPTIMIZERS

SCHEDULES: Mapping[str, Callable[[int], Schedule]] = {
    "constant": lambda steps: constant,
    "linear": linear,
    "cosine": cosine,
}
"""From the number of steps to a schedule."""


def _option(name: str, doc: str, old: str = "", needs: str = "", **how: object) -> Argument:
    return Argument(name, doc, how, old=old, needs=needs)


ARGUMENTS = (
    *COMPILING,
    *place.MESH,
    *hosts.ARGUMENTS,
    _option("--loss", f"what to minimise: {', '.join(LOSSES)}; a model with an output loss needs none", metavar="NAME"),
    _option("--data", "the examples: a .npz file with an array for each input and labels, one row an example",
            metavar="FILE", required=True),
    _option("--test", "examples to evaluate the trained model on, in a .npz file of the same kind", metavar="FILE"),
    _option("--epochs", "how often each example is seen (10)", metavar="N", type=int, default=10),
    _option("--steps", "how many steps to do instead", metavar="N", type=int),
    _option("--batch", "examples of a step (32, or what the model fixes)", metavar="N", type=int),
    _option("--accumulate", "micro-batches that a step is computed in (1)", metavar="N", type=int, default=1),
    _option("--optimizer", f"how weights follow gradients: {', '.join(OPTIMIZERS)} (adamw)", metavar="NAME",
            default="adamw"),
    _option("--lr", "the learning rate (the optimizer's own)", old="--rate", metavar="NUMBER", type=float),
    _option("--momentum", "of sgd and muon", metavar="NUMBER", type=float),
    _option("--weight-decay", "the weight decay (the optimizer's own)", old="--decay", metavar="NUMBER", type=float),
    _option("--schedule", f"how the rate falls: {', '.join(SCHEDULES)} (constant)", metavar="NAME",
            default="constant"),
    _option("--warm-up", "steps in which the rate rises first (0)", metavar="N", type=int, default=0),
    _option("--clip-norm", "scale gradients down to this norm at most", metavar="NUMBER", type=float),
    _option("--clip-value", "clip each element of gradients to this size", metavar="NUMBER", type=float),
    _option("--precision", "compute products in bf16 or f16 and keep weights in f32", choices=["bf16", "f16"]),
    _option("--wrt", "which parameters to train: a pattern (all); may be given several times", metavar="PATTERN",
            action="append", default=[]),
    _option("--lora", "train a narrow pair of matrices beside each matrix that fits a pattern, and add it to that one "
            "at the end; --wrt names what else is trained; may be given several times", metavar="PATTERN",
            action="append", default=[]),
    _option("--lora-rank", "the rank of those pairs (8)", needs="--lora", metavar="N", type=int),
    _option("--seed", "of the order of examples, of dropout and of weights that the model does not have (0)",
            metavar="N", type=int, default=0),
    _option("--threads", "how many threads a step may use (all)", metavar="N", type=int),
    _option("--checkpoint", "write weights and state to this safetensors file now and then", metavar="FILE"),
    _option("--every", "steps between two checkpoints (1000)", needs="--checkpoint", metavar="N",
            type=int, default=1000),
    _option("--resume", "go on from the checkpoint; ends with the weights of a run that was not interrupted",
            action="store_true"),
    _option("--log", "write a line of JSON for each step to this file", metavar="FILE"),
    _option("--html", "write a page with the curve for a browser at the end", metavar="FILE"),
    _option("--output", "where the trained weights go: .onnx for the model with its initializers replaced, or "
            ".safetensors (MODEL.trained.onnx for an ONNX file, else trained.safetensors)", metavar="FILE"),
    JSON,
)  # fmt: skip


def optimizer_of(args: argparse.Namespace) -> Optimizer:
    """The optimizer that a command line names."""
    if args.optimizer not in OPTIMIZERS:
        raise OptionError(f"--optimizer {args.optimizer}", hint=f"there are {', '.join(OPTIMIZERS)}")
    given = {"lr": args.lr, "weight_decay": args.weight_decay, "momentum": args.momentum}
    chosen = {name: number for name, number in given.items() if number is not None}
    if "momentum" in chosen and args.optimizer not in ("sgd", "muon"):
        raise OptionError(f"--momentum with {args.optimizer}", hint="sgd and muon have one")
    return OPTIMIZERS[args.optimizer](**chosen)


def schedule_of(args: argparse.Namespace, steps: int) -> Schedule:
    """The schedule that a command line names, over so many steps."""
    if args.schedule not in SCHEDULES:
        raise OptionError(f"--schedule {args.schedule}", hint=f"there are {', '.join(SCHEDULES)}")
    if not 0 <= args.warm_up < steps:
        raise OptionError(f"--warm-up {args.warm_up} of {steps} steps", hint="warm up for fewer steps, from 0 on")
    falling = SCHEDULES[args.schedule](steps - args.warm_up)
    return warm_up(args.warm_up, falling) if args.warm_up else falling


__all__ = ["ARGUMENTS", "optimizer_of", "schedule_of"]
