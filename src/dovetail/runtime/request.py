"""What a user asked for, checked before anything is compiled."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from inspect import signature
from typing import Any, TypeVar, Unpack, cast, get_args

from dovetail import library
from dovetail import ops as primitives
from dovetail.dataclass import dataclass
from dovetail.declare.cost import Machine
from dovetail.declare.fused import FusedOp
from dovetail.errors import OptionError
from dovetail.nearest import nearest
from dovetail.ops.region import region
from dovetail.passes.claims import Dispatch
from dovetail.passes.epilogues import EPILOGUE, PROLOGUE
from dovetail.passes.pipeline import FUSING, Setup
from dovetail.renamed import old_options
from dovetail.settings import BF16, Settings, SettingsOptions, settings_of
from dovetail.targets import Target, target_named

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """The options of a compilation."""

    target: Target
    setup: Setup
    settings: Settings
    require: Mapping[str, int]
    require_clean: bool
    machine: Callable[[], Machine]
    """The host as it is known, for predictions; a GPU starts for it."""


@old_options(sizes="assume_sizes")
def make_request(
    *,
    target: str | Target = "cpu",
    ops: Iterable[FusedOp[...]] = (),
    without: Iterable[str] = (),
    dispatch: Mapping[str, Dispatch] | None = None,
    require: Mapping[str, int] | Sequence[str] = (),
    require_clean: bool = False,
    assume_sizes: Mapping[str, int] | None = None,
    **options: Unpack[SettingsOptions],
) -> Request:
    """The options of `compile`, checked."""
    settings = settings_of(options, os.environ)
    chosen = target_named(target)
    _check_precision(chosen, settings)
    own = _listed("ops", ops, FusedOp)
    claims = chosen.claims(own)
    # Fusions are decided on the figures that the target claims, so that they are the same on every host; reports
    # price what was decided on this one.
    machine = partial(chosen.machine, settings) if chosen.machine is not None else lambda: claims.machine
    names = {op.name for op in own}
    vocabulary = (*own, *(op for op in library.ALL if op.name not in names))
    setup = Setup(
        claims=claims,
        ops=vocabulary,
        groups=library.GROUPS,
        without=frozenset([*_listed("without", without, str), *(FUSING if claims.fuses_itself else ())]),
        policy=_policy(dispatch or {}, vocabulary),
        strict=settings.strict,
        precision=settings.precision,
        sizes=_counts("assume_sizes", assume_sizes or {}),
        verify_each_pass=settings.verify_each_pass,
        engine=settings.engine,
        search_seconds=settings.search_seconds,
    )
    return Request(chosen, setup, settings, _required(require, setup), require_clean, machine)


def check_options(of: Callable[..., object], options: Mapping[str, Any]) -> None:
    """Refuse options that neither a function that passes them on to `compile` nor `compile` has; check the others."""
    functions = (of, make_request)
    own = [p.name for f in functions for p in signature(f).parameters.values() if p.kind is p.KEYWORD_ONLY]
    known = [*own, *(f.name for f in fields(Settings))]
    for name in options:
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(known)}"
            raise OptionError(f"there is no option {name!r}", hint=hint)
    make_request(**options)  # says what is wrong with their values


def _check_precision(target: Target, settings: Settings) -> None:
    """Products in bf16 are asked for where a machine has them: nothing else is computed in their place."""
    if settings.precision != BF16:
        return
    lacking = f"the target {target.name} has no such products" if target.lacks_bf16 is None else target.lacks_bf16()
    if lacking:
        raise OptionError(f"the option precision is {BF16!r}, and {lacking}", hint='use precision="exact", or "fast"')


def _listed(option: str, given: Any, kind: type[T]) -> tuple[T, ...]:
    """The items of an option; one alone stands for a list of one."""
    if isinstance(given, kind):
        return (given,)
    items: tuple[Any, ...] = tuple(cast(Iterable[Any], given)) if isinstance(given, Iterable) else (given,)
    for item in items:
        if not isinstance(item, kind):
            raise OptionError(f"{option} has {item!r} in it", hint=f"it lists values of type {kind.__name__}")
    return items


def _counts(option: str, given: Any) -> dict[str, int]:
    """Names with whole numbers."""
    if not isinstance(given, Mapping):
        raise OptionError(f"{option} is {given!r}", hint=f"pass {option}={{name: number}}")
    for name, count in cast(Mapping[Any, Any], given).items():
        if not isinstance(name, str) or isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise OptionError(f"{option} says {name!r}: {count!r}", hint="it maps names to whole numbers")
    return dict(cast(Mapping[str, int], given))


def _required(require: Any, setup: Setup) -> dict[str, int]:
    wanted = (
        _counts("require", require)
        if isinstance(require, Mapping)
        else dict.fromkeys(_listed("require", require, str), 1)
    )
    names = (
        {op.name for op in setup.ops}
        | {g.name for g in setup.groups}
        | {region.name, "batched_region", EPILOGUE, PROLOGUE}
    )
    for rule in wanted:
        if rule not in names:
            near = nearest(rule, sorted(names))
            hint = f"did you mean {near[0]}?" if near else f"the rules are {', '.join(sorted(names))}"
            raise OptionError(f"there is no rule {rule!r} to require", hint=hint)
    return wanted


def _policy(dispatch: Any, declared: Sequence[FusedOp[...]]) -> dict[str, Dispatch]:
    if not isinstance(dispatch, Mapping):
        raise OptionError(f"dispatch is {dispatch!r}", hint='pass dispatch={op: "prefer_native"}')
    known = {"*", region.name} | {op.name for op in primitives.ALL} | {op.name for op in declared}
    for name, wish in cast(Mapping[Any, Any], dispatch).items():
        if name not in known:
            raise OptionError(f"there is no op {name!r} to dispatch", hint="use an op's name, or * for all others")
        if wish not in get_args(Dispatch):
            raise OptionError(
                f"{name} is to be dispatched {wish!r}", hint=f"use one of {', '.join(get_args(Dispatch))}"
            )
    return dict(cast(Mapping[str, Dispatch], dispatch))
