"""Reports of compiled graphs: all that are there, or those that one call runs, with what dynamo adds to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath
from statistics import median
from typing import Any

from dovetail.frontends.torch.reading.package import torch_module
from dovetail.torch.compiled import live
from dovetail.torch.report import Explained, GraphBreak, GraphReport


def reports() -> tuple[GraphReport, ...]:
    """Return the reports of all graphs that dynamo holds, in the order in which they were compiled."""
    return tuple(graph.report() for graph in live())


def explain(compiled: Callable[..., Any], *args: Any, repeats: int = 20, **kwargs: Any) -> Explained:
    """Explain what a call of a compiled function or module runs, and how long it takes.

    It is called twice as often as `repeats` says, and once more: half of the calls leave out dynamo's guards, to tell
    what they cost. A module that changes its state changes it in each.
    """
    stance = torch_module("torch.compiler").set_stance
    compiled(*args, **kwargs)
    before = {graph: graph.runs for graph in live()}
    for graph in before:
        graph.time_runs()
    checked, unchecked = list[float](), list[float]()
    for _ in range(max(repeats, 1)):
        checked.append(_seconds(compiled, args, kwargs))
        if len(unchecked) == len(checked) - 1:
            with suppress(RuntimeError), stance("default", skip_guard_eval_unsafe=True):
                # dynamo refuses where a function has several graphs, as those that it divides for DDP.
                unchecked.append(_seconds(compiled, args, kwargs))
    ran = tuple(graph.report() for graph, runs in before.items() if graph.runs > runs)
    guards = max(median(checked) - median(unchecked), 0.0) if unchecked else None
    return Explained(ran, _breaks(), median(checked), guards)


def _seconds(compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    started = time.perf_counter()
    compiled(*args, **kwargs)
    return time.perf_counter() - started


def break_of(reason: Any) -> GraphBreak | None:
    """Return why dynamo ended a graph; None at the end of a function."""
    if reason is None or not reason.graph_break:
        return None
    frame = reason.user_stack[-1] if reason.user_stack else None
    place = "" if frame is None else f"{PurePath(frame.filename).name}:{frame.lineno} in {frame.name}"
    text = _first_line(str(reason.reason))
    known = _unimplemented()
    # dynamo names the step alone where a statement stopped it; its reason is sure where there is but one.
    return GraphBreak(known[0] if text == "step_unsupported" and len(known) == 1 else text, place)


def _breaks() -> tuple[GraphBreak, ...]:
    listed = torch_module("torch._dynamo.utils").graph_break_reasons
    breaks = {graph.graph_break.place: graph.graph_break for graph in live() if graph.graph_break is not None}
    for broken in map(break_of, listed):
        if broken is not None:
            breaks.setdefault(broken.place, broken)
    reasons = {broken.reason for broken in breaks.values()}
    return (*breaks.values(), *(GraphBreak(reason, "") for reason in _unimplemented() if reason not in reasons))


def _unimplemented() -> list[str]:
    """Return what dynamo met and does not trace, in its own words."""
    counters = torch_module("torch._dynamo.utils").counters
    return list(dict.fromkeys(map(_first_line, (*counters["unimplemented"], *counters["graph_break"]))))


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
