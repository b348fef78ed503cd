"""How a network through torch.compile compares with eager and float64, and how many graphs it takes."""

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

import dovetail.torch
from dovetail.torch.compiled import live
from tests.torch_networks.every import full_name, is_installed
from tests.torch_networks.judge import WrongError, axes, built, distance, in_float64, named_sizes, resized
from tests.torch_networks.network import Case, Network

torch: Any = pytest.importorskip("torch")
dynamo: Any = pytest.importorskip("torch._dynamo")

Verdict = Literal["right", "wrong", "recompiled", "skipped", "untraceable", "error", "absent"]
Call = tuple[tuple[Any, ...], Mapping[str, Any]]
SIZES = 10
"""At how many sizes a network is called, where its sizes may change."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What was found about a network through torch.compile."""

    name: str
    kind: str
    verdict: Verdict
    detail: str = ""
    calls: int = 0
    """Calls of different sizes, or of one size where none may change."""
    graphs: int = 0
    """Graphs that they took."""
    breaks: int = 0
    """Places where dynamo broke a graph."""
    fallbacks: tuple[str, ...] = ()
    """Operators that torch ran, and why."""
    distance: float = 0.0
    """The distance from float64, as a multiple of what is allowed."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Counts:
    """What dynamo did for some calls."""

    graphs: int
    breaks: int


def judge_compiled(case: Case) -> Compiled:
    """Call a network through torch.compile at several sizes and compare what it gives with eager and float64."""
    row = Compiled(full_name(case), case.kind, "absent")
    if not is_installed(case.package):
        return replace(row, detail=f"{case.package} is not installed")
    start = time.process_time()
    try:
        row = compared(built(case), row)
    except WrongError as error:
        row = replace(row, verdict="wrong", detail=str(error))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
        by_torch = not isinstance(error, dovetail.errors.DovetailError) and not _runs_in_aot_eager(case)
        verdict: Verdict = "untraceable" if by_torch else "error"
        row = replace(row, verdict=verdict, detail=f"{type(error).__name__} at {place}: {error}")
    return replace(row, seconds=round(time.process_time() - start, 1))


def compared(network: Network, row: Compiled) -> Compiled:
    """The verdict on a network; an error where it is not right."""
    calls = list(_calls_of_sizes(network))
    eager = copy.deepcopy(network.module)
    exact = (copy.deepcopy(network.module).double() if network.exact is None else network.exact).eval()
    untouched = copy.deepcopy(network.module)
    wanted = [_called(eager, *call) for call in calls]
    with torch.no_grad():
        reference = [in_float64(exact, args, kwargs) for args, kwargs in calls]
    # In eager, control flow compiles itself: dynamo counts from here on. Graphs of calls before may still be alive.
    before = set(live())
    found, counts = _counted_calls(network.module, calls, dovetail.torch.backend)
    worst = max(map(distance, found, wanted, reference))
    if network.again is not None:
        worst = max(worst, distance(*(dict(m.named_buffers()) for m in (network.module, eager, exact))))
    told = [f"{f.op} ({f.reason})" for graph in live() if graph not in before for f in graph.report().fallbacks]
    row = replace(
        row,
        verdict="right" if counts.graphs else "skipped",
        calls=len(calls),
        graphs=counts.graphs,
        breaks=counts.breaks,
        fallbacks=tuple(dict.fromkeys(told)),
        distance=round(worst, 3),
    )
    # One graph for the sizes of the first call and one for all others is the least that dynamo makes.
    if counts.breaks or counts.graphs > 1 + (len(calls) > 1 and network.again is None):
        _, needed = _counted_calls(untouched, calls, "aot_eager")
        if counts.graphs > needed.graphs or counts.breaks > needed.breaks:
            detail = f"{counts} where aot_eager has {needed}"
            return replace(row, verdict="recompiled", detail=detail)
    return row


def _calls_of_sizes(network: Network) -> Iterator[Call]:
    """The call of the network, then the same at other sizes: ten where the module itself takes them."""
    yield network.args, dict(network.kwargs)
    if network.again is not None:
        yield network.again, {}
    if network.dynamic is None:
        return
    names = named_sizes(network)
    larger = _at_sizes(network, names)
    moving = names & {"batch"} or names
    for number in range(1, SIZES):
        # Batches grow, between images or texts of the first and of the second size; else those themselves grow.
        base = network if "batch" not in names or number % 2 == 0 else larger
        grown = {name: at + number - 1 for name, at in _sizes(larger, moving).items()}
        called = _at_sizes(replace(base, sizes=grown), moving) if number > 1 else larger
        if not _ends_well(lambda called=called: _called(copy.deepcopy(called.module), called.args, called.kwargs)):
            return  # sizes that the module itself refuses
        yield called.args, dict(called.kwargs)


def _at_sizes(network: Network, names: frozenset[str]) -> Network:
    args, kwargs = resized(network, names)
    return replace(network, args=args, kwargs=kwargs)


def _sizes(network: Network, names: frozenset[str]) -> dict[str, int]:
    return {name: tensor.shape[axis] for tensor, axis, name in axes(network) if name in names}


def _called(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    with torch.no_grad():
        return module(*copy.deepcopy(args), **copy.deepcopy(kwargs))


def _counted_calls(module: Any, calls: Sequence[Call], backend: Any) -> tuple[list[Any], Counts]:
    """What calls through torch.compile give, and what dynamo did for them."""
    dynamo.reset()
    counters = dynamo.utils.counters
    counters.clear()
    compiled_module = torch.compile(module, backend=backend)
    found = [_called(compiled_module, *call) for call in calls]
    return found, Counts(counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))


def _runs_in_aot_eager(case: Case) -> bool:
    """Whether torch's own backend takes a network: what it refuses too is not held against ours."""
    network = built(case)
    calls = list(_calls_of_sizes(network))
    return _ends_well(lambda: _counted_calls(network.module, calls, "aot_eager"))


def _ends_well(attempted: Callable[[], object]) -> bool:
    try:
        attempted()
    except Exception:  # whatever torch raises
        return False
    return True
