"""Times of steps on the device: events between the launches of a run, as marks on the clock of the host."""

from __future__ import annotations

import time
from collections.abc import Iterator

from dovetail.plan.marks import Mark
from dovetail.plan.plan import Step
from dovetail.targets.cuda.driver.streams import Event
from dovetail.targets.cuda.runs.bound_plan import LoadedKernel
from dovetail.targets.cuda.runs.frame import DeviceFrame
from dovetail.targets.cuda.runs.graph import LaunchGraph


def run_timed(frame: DeviceFrame) -> list[Mark]:
    """Launch the kernels of a run, wait for them, and say when each step ran."""
    return _as_graph(frame) if frame.bound.captures and frame.launches else _one_by_one(frame)


def _as_graph(frame: DeviceFrame) -> list[Mark]:
    """A graph with events between its nodes: the device does not wait for the host between two kernels."""
    driver = frame.driver
    events = [Event(driver) for _ in range(len(frame.launches) + 1)]
    graph = LaunchGraph(driver, frame.launches, events)
    driver.wait_for(frame.stream)
    started = time.perf_counter_ns()
    graph.launch(frame.stream)
    driver.wait_for(frame.stream)
    at = [started + int(1e9 * event.seconds_since(events[0])) for event in events]
    spans: list[tuple[Step, int, int, bool]] = []
    for i, one in enumerate(frame.bound.loaded):
        spans += _shared_out(one, at[i], at[i + 1])
    return list(_merged(spans))


def _one_by_one(frame: DeviceFrame) -> list[Mark]:
    """Launches with events around each, and steps on the host between them."""
    driver = frame.driver
    first = Event(driver)
    driver.wait_for(frame.stream)
    started = time.perf_counter_ns()
    first.record(frame.stream)
    launches = iter(frame.launches)
    spans: list[tuple[Step, int, int, bool]] = []
    for one in frame.bound.work:
        if isinstance(one, LoadedKernel):
            begin, end = Event(driver), Event(driver)
            begin.record(frame.stream)
            next(launches).enqueue(frame.stream, in_order=True)
            end.record(frame.stream)
            from_, until = (started + int(1e9 * event.seconds_since(first)) for event in (begin, end))
            spans += _shared_out(one, from_, until)
        else:
            begun = time.perf_counter_ns()
            frame.on_host(one.step)
            spans.append((one.step, begun, time.perf_counter_ns(), True))
    return list(_merged(spans))


def _shared_out(one: LoadedKernel, begin: int, end: int) -> list[tuple[Step, int, int, bool]]:
    """Return the time of a launch in equal shares for its steps: nothing measures them apart."""
    steps = (*one.joined, one.step)
    at = [begin + (end - begin) * i // len(steps) for i in range(len(steps) + 1)]
    return [(step, at[i], at[i + 1], False) for i, step in enumerate(steps)]


def _merged(spans: list[tuple[Step, int, int, bool]]) -> Iterator[Mark]:
    """One mark for each step, from the first of its kernels to the last."""
    for index, (step, begin, end, on_host) in enumerate(spans):
        if index and spans[index - 1][0] is step:
            continue
        for later in spans[index + 1 :]:
            if later[0] is not step:
                break
            end = later[2]
        yield Mark(step, begin, end, on_host)


__all__ = ["run_timed"]
