"""Training: losses, optimizers and schedules as graphs and numbers, the compiled step, and the trainer that runs it."""

from typing import TYPE_CHECKING

from dovetail.renamed import old_names as _old_names
from dovetail.train.live import LiveCurve
from dovetail.train.lora import lora, merged
from dovetail.train.losses import (
    LOSSES,
    binary_cross_entropy,
    contrastive,
    cross_entropy,
    huber,
    kl_divergence,
    mean_absolute,
    mean_squared,
)
from dovetail.train.matrices import Adafactor, Muon
from dovetail.train.modes import dropout
from dovetail.train.optimizers import SGD, Adam, AdamW, Lion, Optimizer, Updated
from dovetail.train.schedules import Schedule, constant, cosine, linear, steps_down, warm_up
from dovetail.train.step import Group, StepGraph, StepOptions, step_graph
from dovetail.train.trainer import Metrics, Trainer

__all__ = [
    "LOSSES", "SGD", "Adafactor", "Adam", "AdamW", "Group", "Lion", "LiveCurve", "Metrics", "Muon", "Optimizer",
    "Schedule",
    "StepGraph", "StepOptions", "Trainer", "Updated", "binary_cross_entropy", "constant", "contrastive", "cosine",
    "cross_entropy", "dropout", "huber", "kl_divergence", "linear", "lora", "mean_absolute", "mean_squared", "merged",
    "step_graph",
    "steps_down", "warm_up",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = _old_names(__name__, {"Ways": "dovetail.train.StepOptions"})
