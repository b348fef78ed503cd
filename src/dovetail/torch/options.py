"""The options of torch.compile(model, backend="dovetail"), checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.errors import DeviceError, OptionError
from dovetail.frontends.torch.importing.custom import custom_rules
from dovetail.frontends.torch.importing.rule import Rule
from dovetail.frontends.torch.reading.package import torch_module
from dovetail.frontends.torch.rules import REGISTRY
from dovetail.nearest import nearest
from dovetail.runtime.request import make_request
from dovetail.settings import Settings

_TUNED: Mapping[str, Any] = {"tune": "always"}
MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": _TUNED,
    "max-autotune-no-cudagraphs": _TUNED,
}
"""Modes of torch.compile, as settings. Calls are prepared, and CUDA graphs used, in all of them."""
FALLBACKS = ("eager", "error")
OWN = ("custom_ops", "fallback", "target")


@dataclass(frozen=True, slots=True)
class Options:
    """How captured graphs are compiled."""

    target: str
    fallback: Literal["eager", "error"]
    settings: Mapping[str, Any]
    """Fields of `Settings`."""
    rules: Mapping[str, Rule]
    """What each operator is read as, custom ones included."""
    declared: tuple[FusedOp[...], ...] = ()
    """Declared ops among the bodies of custom operators: they fuse."""


def options_of(mode: str | None, options: Mapping[str, Any] | None, inputs: Sequence[Any]) -> Options:
    """Return the options of a call of torch.compile, for tensors on the device of these inputs."""
    if mode is not None and mode not in MODES:
        near = nearest(mode, MODES)
        hint = f"did you mean {near[0]!r}?" if near else f"the modes are {', '.join(MODES)}"
        raise OptionError(f"there is no mode {mode!r}", hint=hint)
    chosen = {**MODES[mode or "default"], **(options or {})}
    known = [*OWN, *(f.name for f in fields(Settings))]
    for name in chosen:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(known)}"
            raise OptionError(f"there is no option {name!r}", hint=hint)
    fallback = chosen.pop("fallback", "eager")
    if fallback not in FALLBACKS:
        raise OptionError(f"the option fallback is {fallback!r}", hint=f"use one of {', '.join(FALLBACKS)}")
    bodies = chosen.pop("custom_ops", {})
    rules = {**REGISTRY.by_name, **custom_rules(bodies)}
    declared = tuple(body for body in bodies.values() if isinstance(body, FusedOp))
    target = chosen.pop("target", None)
    device = _device(inputs)
    if target is None:
        target = "cuda" if device == "cuda" else "cpu"
    if (target == "cuda") != (device == "cuda"):
        raise DeviceError(
            f"tensors on {device} for the target {target}",
            hint=f"move the model and its inputs to {'cuda' if target == 'cuda' else 'the cpu'}, or change the target",
        )
    # Two pools of different sizes would each think that the cores are theirs.
    settings = {"threads": torch_module().get_num_threads(), **chosen}
    make_request(target=target, **settings)  # says what is wrong with them
    return Options(target, fallback, settings, rules, declared)


def _device(inputs: Sequence[Any]) -> str:
    """Return the one kind of device that tensors are on."""
    torch = torch_module()
    kinds = {x.device.type for x in inputs if isinstance(x, torch.Tensor) and (x.dim() or x.device.type != "cpu")}
    if len(kinds) > 1 or kinds - {"cpu", "cuda"}:
        raise DeviceError(f"tensors on {', '.join(sorted(kinds))}", hint="use tensors on cpu, or all of them on cuda")
    return kinds.pop() if kinds else "cpu"
