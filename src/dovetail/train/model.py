"""What a trainer is given: a model as a graph, an optimizer, and batches, as people first write them."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, cast

import numpy as np

from dovetail.errors import BindError, OptionError
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.nearest import nearest
from dovetail.runtime.in_memory import is_torch
from dovetail.runtime.load import load
from dovetail.train.matrices import Adafactor, Muon
from dovetail.train.optimizers import SGD, Adam, AdamW, Lion, Optimizer

OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "adamw": AdamW,
    "adam": Adam,
    "sgd": SGD,
    "lion": Lion,
    "adafactor": Adafactor,
    "muon": Muon,
}
"""By name, as `Trainer` and the command line take them."""


def model_of(given: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic: Any) -> Graph:
    """The graph of a model: a graph, a file, a module of torch with the arguments of a call, a function of JAX."""
    if not is_torch(given):
        if args or kwargs or dynamic:
            raise OptionError(
                "args, kwargs or dynamic without a torch module", hint="they say how a module is read; leave them out"
            )
        return load(given, train=True)
    if not hasattr(given, "graph_signature") and not args and not kwargs:
        raise OptionError(
            f"the module {type(given).__name__} without a call to export it by",
            hint='pass an example: Trainer(module, …, args=(x,), dynamic={"x": {0: "batch"}})',
        )
    from dovetail.frontends.torch.load import import_module  # torch takes seconds, for those who need it

    return import_module(given, args, kwargs, dynamic).graph


def optimizer_of(given: Any) -> Optimizer:
    """An optimizer, or the one that a name stands for."""
    if given is None:
        return AdamW()
    if isinstance(given, str):
        if given.lower() not in OPTIMIZERS:
            close = nearest(given, OPTIMIZERS)
            hint = f"did you mean {close[0]!r}?" if close else f"the optimizers are {', '.join(OPTIMIZERS)}"
            raise OptionError(f"there is no optimizer {given!r}", hint=hint)
        return OPTIMIZERS[given.lower()]()
    if isinstance(given, type):
        raise OptionError(f"the class {given.__name__} for an optimizer", hint=f"make one: {given.__name__}()")
    lacking = [name for name in ("lr", "weight_decay", "state", "numbers", "update") if not hasattr(given, name)]
    if lacking:
        name = type(given).__name__
        known = {kind.__name__ for kind in OPTIMIZERS.values()}
        hint = (
            f"dovetail.train.{name} is one"
            if name in known
            else f"there are {', '.join(sorted(known))} in dovetail.train"
        )
        raise OptionError(f"{type(given).__module__}.{name} is no optimizer of dovetail's", hint=hint)
    return cast(Optimizer, given)


def batch_of(given: Any, names: Sequence[str], own: Container[str] = ()) -> dict[str, Array]:
    """A batch as arrays by name: a mapping, or arrays in the order of the names; tensors of torch are taken too.

    `own` are names of arrays that the trainer keeps, of which a batch has none.
    """
    listed = ", ".join(names)
    if isinstance(given, Mapping):
        named = dict(cast(Mapping[str, Any], given))
    elif isinstance(given, list | tuple):
        items = list(cast(Sequence[Any], given))
        if len(items) != len(names):
            raise BindError(f"a batch of {len(items)} arrays", hint=f"pass {len(names)}, in this order: {listed}")
        named = dict(zip(names, items, strict=True))
    else:
        raise BindError(f"a {type(given).__name__} for a batch", hint=f"pass a dict with the arrays {listed}")
    kept = [str(name) for name in named if name not in names and (name in own or str(name).startswith("train."))]
    if kept:
        verb = "belongs" if len(kept) == 1 else "belong"
        raise BindError(
            f"the batch has {', '.join(kept)}, and {', '.join(kept)} {verb} to the trainer",
            hint=f"pass what the model reads, and labels: {listed}; weights are set when a Trainer is made",
        )
    strange = [str(name) for name in named if name not in names]
    missing = [name for name in names if name not in named]
    if strange or missing:
        parts = [
            *([f"has {', '.join(strange)}, which nothing reads"] if strange else []),
            *([f"lacks {', '.join(missing)}"] if missing else []),
        ]
        raise BindError(f"the batch {' and '.join(parts)}", hint=f"a batch has the arrays {listed}")
    return {name: array_of_any(one, name) for name, one in named.items()}


def array_of_any(given: Any, name: str) -> Array:
    """An array; a tensor of torch shares its memory with it."""
    if isinstance(given, np.ndarray):
        return cast(Array, given)
    if type(given).__module__.partition(".")[0] == "torch":
        from dovetail.frontends.torch.reading.tensors import array_of  # who has a tensor has torch

        return array_of(given, name)
    found = np.asarray(given)
    if found.dtype.hasobject:
        raise BindError(f"{name} is a {type(given).__name__}", hint="pass an array or a tensor")
    return found


__all__ = ["OPTIMIZERS", "array_of_any", "batch_of", "model_of", "optimizer_of"]
