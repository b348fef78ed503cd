"""Times of ways to compute a step, on memory of their own: in turns, as graphs, since clocks change meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from dovetail.errors import OutOfMemoryError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.kernels.spec import Packed
from dovetail.plan.plan import Plan
from dovetail.targets.cuda.bound_plan import LoadedKernel
from dovetail.targets.cuda.driver import DEFAULT_STREAM, Driver, Launch
from dovetail.targets.cuda.graph import LaunchGraph
from dovetail.targets.cuda.memory import CudaBuffer
from dovetail.targets.cuda.streams import Event

ROUNDS = 7
"""Times that are taken of each way; the median counts."""
SECONDS = 1e-3
"""Of the runs that a time is taken of, about."""
MOST_RUNS = 16
"""How many these are at most: all of them are one graph."""
NEAR = 1.3
"""Ways that take longer than the fastest by this factor, in one run, are not looked at again."""
MOST_MEMORY = 0.5
"""The part of the free memory that tensors of a trial may take."""
_DRAWN = 1 << 16
"""Numbers that are drawn; tensors repeat them."""


class Trial:
    """Several ways to compute a step, with tensors of random numbers that they share."""

    def __init__(self, driver: Driver, plan: Plan, ways: Sequence[Sequence[LoadedKernel]]) -> None:
        self.driver, self.plan = driver, plan
        kernels = [one for way in ways for one in way]
        roots = {plan.root_of(v) for one in kernels for v in one.kernel.bindings.values()}
        space = max([known(one.kernel.workspace_bytes) for one in kernels], default=0)
        needed = space + sum([known(root.tensor.bytes) for root in roots])
        if needed > MOST_MEMORY * driver.free_memory()[0]:
            raise OutOfMemoryError("a trial takes more than it may", needed=needed, free=driver.free_memory()[0])
        self.buffers = {root: CudaBuffer(driver, known(root.tensor.bytes)) for root in roots}
        for root, buffer in self.buffers.items():
            self._fill(buffer, root.dtype)
        self.space = CudaBuffer(driver, space)
        self.packed: dict[object, CudaBuffer] = {}
        for packed in [packed for one in kernels for packed in one.kernel.packed.values()]:
            if packed.key not in self.packed:
                self.packed[packed.key] = self._uploaded(_packed(packed))
        self.ways = [[self._launch(one) for one in way] for way in ways]

    def _launch(self, one: LoadedKernel) -> Launch:
        found: list[int] = []
        for name in one.kernel.kernel.pointers:
            if name in one.kernel.workspace:
                found.append(self.space.address + known(one.kernel.workspace[name]))
            elif name in one.kernel.packed:
                found.append(self.packed[one.kernel.packed[name].key].address)
            else:
                at = self.plan.locate(one.kernel.bindings[name])
                found.append(self.buffers[at.root].address + known(at.offset))
        return one.launch(found, known)

    def _uploaded(self, content: Array) -> CudaBuffer:
        found = CudaBuffer(self.driver, content.nbytes)
        found.copy_from_host(content)
        return found

    def _fill(self, buffer: CudaBuffer, dtype: DType) -> None:
        """Random numbers, which repeat: what is multiplied decides how fast the clock of the device may be."""
        content = _numbers(min(_DRAWN, max(1, buffer.nbytes // dtype.itemsize)), dtype).view(np.uint8)
        content = content[: buffer.nbytes]
        buffer.copy_from_host(content)
        done = content.nbytes
        while done < buffer.nbytes:
            count = min(done, buffer.nbytes - done)
            self.driver.call("cuMemcpyDtoDAsync_v2", buffer.address + done, buffer.address, count, DEFAULT_STREAM)
            done += count

    def seconds(self) -> list[float]:
        """What each way takes: medians, and one time of those that are far from the fastest."""
        first = [self._timed(lambda launches=launches: _each(launches)) for launches in self.ways]
        near = [at for at, time in enumerate(first) if at == 0 or time <= NEAR * min(first)]
        runs = {at: max(1, min(MOST_RUNS, round(SECONDS / max(first[at], 1e-9)))) for at in near}
        graphs = {at: LaunchGraph(self.driver, self.ways[at] * runs[at]) for at in near}
        found = {at: list[float]() for at in near}
        for _ in range(ROUNDS):
            for at, graph in graphs.items():
                found[at].append(self._timed(lambda graph=graph: graph.launch(DEFAULT_STREAM)) / runs[at])
        return [median(found[at]) if at in found else time for at, time in enumerate(first)]

    def _timed(self, enqueue: Callable[[], None]) -> float:
        """Seconds of what is enqueued, after the same has run once: the device does not wait for the host then."""
        begin, end = Event(self.driver), Event(self.driver)
        enqueue()
        begin.record()
        enqueue()
        end.record()
        return end.seconds_since(begin)

    def close(self) -> None:
        """Wait for all runs, after which memory goes with this."""
        self.driver.wait_for(DEFAULT_STREAM)


def known(size: Size) -> int:
    """A size that does not differ from run to run."""
    assert isinstance(size, int), "steps with other sizes have no trial"
    return size


def _each(launches: Sequence[Launch]) -> None:
    for launch in launches:
        launch.enqueue(DEFAULT_STREAM)


def _numbers(count: int, dtype: DType) -> Array:
    if not dtype.is_float:
        return np.zeros(count, dtype.numpy)
    return np.random.default_rng(0).standard_normal(count, np.float32).astype(dtype.numpy)


def _packed(packed: Packed) -> Array:
    """What a kernel reads of weights that are packed."""
    given = [
        np.resize(_numbers(_DRAWN, v.dtype), tuple(map(known, v.tensor.shape))) for v in (packed.value, *packed.beside)
    ]
    return np.ascontiguousarray(packed.pack(*given)).reshape(-1).view(np.uint8)


__all__ = ["Trial", "known"]
