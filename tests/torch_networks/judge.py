"""How a compiled network compares with eager and with a float64 run of it, and whether its attention is found."""

# torch is optional, and its classes have no types here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

import dovetail
from dovetail.frontends.torch.exported import Exported
from dovetail.frontends.torch.reading.program import read_program
from dovetail.ir.dim import Dim
from dovetail.report.report import Report
from tests.torch_networks.attention_calls import attention_calls
from tests.torch_networks.every import full_name, is_installed
from tests.torch_networks.network import Case, Network

torch: Any = pytest.importorskip("torch")
pytree: Any = pytest.importorskip("torch.utils._pytree")

Verdict = Literal["right", "wrong", "refused", "untraceable", "error", "absent"]
Sizes = Literal["named", "automatic", "fixed"]


@dataclass(frozen=True, slots=True)
class Judged:
    """What was found about a network."""

    name: str
    kind: str
    verdict: Verdict
    detail: str = ""
    sizes: Sizes = "fixed"
    """How the sizes that may change were exported; fixed where the network has none, or torch fixes them."""
    changes: bool = False
    """Whether the network says that sizes may change."""
    attention: int = 0
    """How many attentions the network calls."""
    found: int = 0
    """How many of them are one kernel."""
    distance: float = 0.0
    """The distance from float64, as a multiple of what is allowed."""
    steps: int = 0
    seconds: float = 0.0


class WrongError(Exception):
    """A result that is further from float64 than it may be."""


def judge(case: Case) -> Judged:
    """Compile a network and compare what it gives with eager and float64."""
    row = Judged(full_name(case), case.kind, "absent")
    if not is_installed(case.package):
        return replace(row, detail=f"{case.package} is not installed")
    start = time.process_time()
    try:
        row, _ = compared(built(case), row)
    except WrongError as error:
        row = replace(row, verdict="wrong", detail=str(error))
    except dovetail.errors.UnsupportedError as error:
        row = replace(row, verdict="refused", detail=str(error))
    except dovetail.errors.LoadError as error:
        by_torch = "torch.export refuses" in str(error)
        row = replace(row, verdict="untraceable" if by_torch else "error", detail=str(error))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
        row = replace(row, verdict="error", detail=f"{type(error).__name__} at {place}: {error}")
    return replace(row, seconds=round(time.process_time() - start, 1))


def built(case: Case) -> Network:
    """The network with the same weights every time."""
    torch.manual_seed(0)
    made = case()
    made.module.eval().requires_grad_(False)
    return made


def compared(network: Network, row: Judged) -> tuple[Judged, Report]:
    """The verdict on a network, and the report of its program; an error where it is not right."""
    eager = copy.deepcopy(network.module)
    exact = (copy.deepcopy(network.module).double() if network.exact is None else network.exact).eval()
    first = (network.args, dict(network.kwargs))
    copied = copy.deepcopy(first)
    program, sizes = _compiled(network, copied)
    calls = [first]
    if network.again is not None:
        calls.append((network.again, {}))
    if sizes != "fixed":
        calls.append(resized(network, kept_sizes(network, program)))
    worst = 0.0
    for args, kwargs in calls:
        with torch.no_grad():
            wanted = eager(*copy.deepcopy(args), **copy.deepcopy(kwargs))
            reference = in_float64(exact, args, kwargs)
        worst = max(worst, distance(program(*args, **kwargs), wanted, reference))
    if network.again is not None:
        worst = max(worst, distance(*(dict(m.named_buffers()) for m in (network.module, eager, exact))))
    found = replace(
        row,
        verdict="right",
        sizes=sizes,
        changes=network.dynamic is not None,
        attention=attention_calls(exported_of(program)),
        found=sum(any(r.endswith("attention") for r in (f.rule, *f.chain)) for f in program.report.fused),
        distance=round(worst, 3),
        steps=len(program.plan.steps),
    )
    if found.found < found.attention:
        missed = [f"{m.reason}: {m.message}" for m in program.report.missed if m.rule.endswith("attention")]
        found = replace(found, detail=missed[0] if missed else "no part of the graph looks like attention")
    return found, program.report


def exported_of(program: Any) -> Exported:
    """The program of torch that a compiled module comes from, as plain data."""
    captured = program._imported.captured
    return read_program(captured.program, names=captured.names)


def _compiled(network: Network, call: tuple[Any, Mapping[str, Any]]) -> tuple[Any, Sizes]:
    """The compiled network with the sizes that it names, else those that torch leaves open, else none."""
    args, kwargs = call
    if network.dynamic is None:
        return dovetail.compile(network.module, args=args, kwargs=kwargs), "fixed"
    tried: list[tuple[Any, Sizes]] = [(network.dynamic, "named"), (unnamed(network.dynamic), "automatic")]
    for dynamic, how in tried:
        try:
            return dovetail.compile(network.module, args=args, kwargs=kwargs, dynamic=dynamic), how
        except dovetail.errors.LoadError as error:
            if "torch.export refuses" not in str(error):
                raise
    return dovetail.compile(network.module, args=args, kwargs=kwargs), "fixed"


def unnamed(spec: Any) -> Any:
    """A description with the names of sizes replaced by what torch makes of each axis."""
    if isinstance(spec, str):
        return True
    if isinstance(spec, dict):
        return {k: unnamed(v) for k, v in spec.items()}
    return type(spec)(map(unnamed, spec)) if isinstance(spec, list | tuple) else spec


def kept_sizes(network: Network, program: Any) -> frozenset[str]:
    """The names of sizes that are symbols on every axis that has them."""
    types = [leaf.type for leaf in exported_of(program).leaves if leaf.kind == "input"]
    tensors = [t for t in pytree.tree_leaves((network.args, dict(network.kwargs))) if isinstance(t, torch.Tensor)]
    if len(types) != len(tensors):
        return frozenset()
    at = {id(tensor): type for tensor, type in zip(tensors, types, strict=True)}
    named: dict[str, list[bool]] = {}
    for tensor, axis, name in axes(network):
        named.setdefault(name, []).append(isinstance(at[id(tensor)].shape[axis], Dim))
    return frozenset(name for name, kept in named.items() if all(kept))


def named_sizes(network: Network) -> frozenset[str]:
    """The names of all sizes that may change."""
    return frozenset() if network.dynamic is None else frozenset(name for _, _, name in axes(network))


def axes(network: Network) -> Iterator[tuple[Any, int, str]]:
    """The tensors whose sizes may change, with the axis and the name of each."""
    spec, given = network.dynamic, (network.args, dict(network.kwargs))
    if isinstance(spec, Mapping):
        parts = [(spec.get(k), v) for k, v in given[1].items()]
        parts += list(zip(spec.values(), given[0], strict=False))
    elif len(spec) == 1 and isinstance(spec[0], tuple):
        parts = list(zip(spec[0], given[0], strict=True))
    else:
        parts = list(zip(spec, given[0], strict=False))
    for one, value in parts:
        yield from _axes_of(one, value)


def _axes_of(spec: Any, value: Any) -> Iterator[tuple[Any, int, str]]:
    if isinstance(value, torch.Tensor):
        for axis, name in (spec or {}).items():
            yield value, axis, name
    elif spec is not None:
        for one, inner in zip(spec, value, strict=True):
            yield from _axes_of(one, inner)


def resized(network: Network, names: frozenset[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with other sizes: those of the network, one more in a batch, else doubled."""
    changed: dict[int, Any] = {}
    for tensor, axis, name in axes(network):
        if name not in names:
            continue
        old = tensor.shape[axis]
        new = network.sizes.get(name, old + 1 if name == "batch" else 2 * old)
        whole = changed.get(id(tensor), tensor)
        changed[id(tensor)] = torch.cat([whole] * -(-new // old), dim=axis).narrow(axis, 0, new).contiguous()
    return pytree.tree_map(lambda t: changed.get(id(t), t), (network.args, dict(network.kwargs)))


def in_float64(module: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a module of float64 gives for these arguments."""
    torch.set_default_dtype(torch.float64)
    try:
        given, named = wide((tuple(args), dict(kwargs)))
        return module(*given, **named)
    finally:
        torch.set_default_dtype(torch.float32)


def wide(tree: Any) -> Any:
    def doubled(v: Any) -> Any:
        return v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else copy.deepcopy(v)

    return pytree.tree_map(doubled, tree)


def leaves(tree: Any) -> list[Any]:
    return [v for v in pytree.tree_leaves(tree) if isinstance(v, torch.Tensor)]


def assert_as_near_as_eager(found: Any, wanted: Any, exact: Any) -> None:
    """Twice eager's own distance from float64, and a few roundings."""
    assert distance(found, wanted, exact) <= 1


def distance(found: Any, wanted: Any, exact: Any) -> float:
    """How far a result is from float64 as a multiple of what is allowed: twice eager's distance, and few roundings."""
    if pytree.tree_structure(found) != pytree.tree_structure(wanted):
        raise WrongError(f"{pytree.tree_structure(found)} for {pytree.tree_structure(wanted)}")
    worst = 0.0
    for x, y, r in zip(leaves(found), leaves(wanted), leaves(exact), strict=True):
        if x.dtype != y.dtype or x.shape != y.shape:
            raise WrongError(f"{x.dtype} {tuple(x.shape)} for {y.dtype} {tuple(y.shape)}")
        if not x.numel():
            continue
        if not x.is_floating_point() and not x.is_complex():
            if not torch.equal(x, y):
                raise WrongError(f"{int((x != y).sum())} of {x.numel()} integers differ")
            continue
        finite = y.isfinite()
        if not torch.equal(torch.nan_to_num(x[~finite]), torch.nan_to_num(y[~finite])):
            raise WrongError("infinities and NaN are at other places")
        if not finite.any():
            continue
        x, y, r = (t[finite].to(torch.complex128 if x.is_complex() else torch.float64) for t in (x, y, r))
        allowed = 2 * (y - r).abs().max() + 8 * torch.finfo(torch.float32).eps * r.abs().max().clamp(min=1.0)
        ratio = float((x - r).abs().max() / allowed)
        if not ratio <= 1:
            raise WrongError(f"{ratio:.3g} times the distance that is allowed, {float(allowed):.3g}")
        worst = max(worst, ratio)
    return worst
