"""Times candidates for a step against each other, on memory of their own: alternately, as graphs, since clocks vary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from statistics import median

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import OutOfMemoryError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.kernels.spec import Packed
from dovetail.plan.plan import Plan
from dovetail.targets.cuda.driver.driver import DEFAULT_STREAM, Driver, PreparedLaunch
from dovetail.targets.cuda.driver.memory import CudaBuffer
from dovetail.targets.cuda.driver.streams import Event
from dovetail.targets.cuda.library.weights import weight_bytes, weights_of
from dovetail.targets.cuda.runs.bound_plan import Base, LoadedKernel
from dovetail.targets.cuda.runs.graph import LaunchGraph
from dovetail.targets.gpu.kernel import GpuKernel

ROUNDS = 7
"""How often each candidate is timed; the median counts."""
SECONDS = 1e-3
"""Of the runs that a time is taken of, about."""
LONGEST = 5e-3
"""The limit where runs read every copy of the weights. Where that takes longer, reads of weights take little of it."""
MOST_RUNS = 16
"""How many these are at most, where there are not more copies: all of them are one graph."""
MOST_COPIES = 64
"""Of the weights of a step, at most: with 1.6 MB each they take twice the L2 of an H200."""
NEAR = 1.3
"""Candidates slower than the fastest by this factor, in one run, are not timed again."""
MOST_MEMORY = 0.5
"""The part of the free memory that tensors of a trial may take."""
_ALIGNED = 256
"""The bytes that copies start at multiples of, as memory does that is allocated."""
_DRAWN = 1 << 16
"""Numbers that are drawn; tensors repeat them."""


@dataclass(frozen=True, slots=True)
class _Copies:
    """A tensor in memory, or several of its size."""

    buffer: CudaBuffer
    apart: int = 0
    """Bytes from a copy to the next one; 0 where all runs share one."""

    def address(self, copy: int) -> int:
        return self.buffer.address + copy * self.apart


class _Tensors:
    """The tensors that all candidates read and write: random numbers, and copies of weights that are `cold`."""

    def __init__(self, driver: Driver, plan: Plan, candidates: Sequence[Sequence[GpuKernel]], *, cold: bool) -> None:
        self.driver, self.plan = driver, plan
        kernels = [kernel for kernels in candidates for kernel in kernels]
        bound = [v for kernel in kernels for v in kernel.bindings.values()]
        packed = {one.key: one for kernel in kernels for one in kernel.packed.values()}
        contents: dict[Base, Array] = {key: _packed(one) for key, one in packed.items()}
        roots = {root: known(root.tensor.bytes) for root in map(plan.root_of, bound)}
        space = max([known(kernel.workspace_bytes) for kernel in kernels], default=0)
        apart: dict[Base, int] = {root: _padded(roots[root]) for root in weights_of(plan, bound)}
        apart |= {key: _padded(content.nbytes) for key, content in contents.items()}
        shared, each = space + sum([n for root, n in roots.items() if root not in apart]), sum(apart.values())
        free = driver.free_memory()[0]
        room = int(MOST_MEMORY * free) - shared
        if each > room:
            raise OutOfMemoryError("a trial takes more than it may", needed=shared + each, free=free)
        self.copies = self._copies_that_fit(candidates, room // max(1, each)) if cold else 1
        self._tensors: dict[Base, _Copies] = {}
        for root, count in roots.items():
            content = _numbers(min(_DRAWN, max(1, count // root.dtype.itemsize)), root.dtype).view(np.uint8)
            self._tensors[root] = self._filled(content, count, apart.get(root, 0))
        for key, content in contents.items():
            self._tensors[key] = self._filled(np.resize(content, apart[key]), apart[key], apart[key])
        self.space = CudaBuffer(driver, space)

    def _copies_that_fit(self, candidates: Sequence[Sequence[GpuKernel]], most: int) -> int:
        """How many copies of cold weights: of twice L2 in all, nothing is left there when a copy is read again."""
        read = min([weight_bytes(self.plan, kernels) for kernels in candidates])
        twice = -(-2 * self.driver.description.l2_bytes // max(1, read))
        return max(1, min(twice, MOST_COPIES, most)) if read else 1

    def _filled(self, content: Array, nbytes: int, apart: int) -> _Copies:
        """A tensor, or copies of it, with bytes that repeat: what is multiplied decides how fast the clock of the
        device may be."""
        nbytes = apart * self.copies or nbytes
        buffer = CudaBuffer(self.driver, nbytes)
        buffer.copy_from_host(content[:nbytes])
        done = min(content.nbytes, nbytes)
        while done < nbytes:
            count = min(done, nbytes - done)
            self.driver.call("cuMemcpyDtoDAsync_v2", buffer.address + done, buffer.address, count, DEFAULT_STREAM)
            done += count
        return _Copies(buffer, apart)

    def launch(self, one: LoadedKernel, copy: int) -> PreparedLaunch:
        """The launch of a kernel that reads one of the copies."""
        kernel, addresses = one.kernel, list[int]()
        for name in kernel.kernel.pointers:
            if name in kernel.workspace:
                addresses.append(self.space.address + known(kernel.workspace[name]))
            elif name in kernel.packed:
                addresses.append(self._tensors[kernel.packed[name].key].address(copy))
            else:
                at = self.plan.locate(kernel.bindings[name])
                addresses.append(self._tensors[at.root].address(copy) + known(at.offset))
        return one.launch(addresses, known)


class Trial:
    """Times several candidates for a step, on the same tensors.

    Weights that are `cold` have copies, which runs read in turn: what a run reads of them comes from memory, as it does
    in a program where the weights of other steps have replaced them in L2. Activations are in L2 in both.
    """

    def __init__(self, driver: Driver, plan: Plan, candidates: Sequence[Sequence[LoadedKernel]], *, cold: bool) -> None:
        self.driver = driver
        self.tensors = _Tensors(driver, plan, [[one.kernel for one in kernels] for kernels in candidates], cold=cold)
        self.copies = self.tensors.copies
        self.candidates = [
            [[self.tensors.launch(one, n) for one in kernels] for n in range(self.copies)] for kernels in candidates
        ]
        """The launches of each candidate, for each copy of the weights."""

    def seconds(self) -> list[float]:
        """Return the seconds of each candidate: medians, and one time of those far from the fastest."""
        copies = cycle(range(self.copies))
        first = [self._timed(*[partial(_each, one[next(copies)]) for _ in range(2)]) for one in self.candidates]
        near = [at for at, time in enumerate(first) if at == 0 or time <= NEAR * min(first)]
        runs = {at: runs_of(first[at], self.copies) for at in near}
        graphs = {at: self._graph(at, runs[at]) for at in near}
        times = {at: list[float]() for at in near}
        for _ in range(ROUNDS):
            for at, graph in graphs.items():
                again = partial(graph.launch, DEFAULT_STREAM)
                times[at].append(self._timed(again, again) / runs[at])
        return [median(times[at]) if at in times else time for at, time in enumerate(first)]

    def _graph(self, at: int, runs: int) -> LaunchGraph:
        """Capture runs of a candidate, each of which reads the next copy."""
        copies = [self.candidates[at][run % self.copies] for run in range(runs)]
        return LaunchGraph(self.driver, [launch for launches in copies for launch in launches])

    def _timed(self, before: Callable[[], None], timed: Callable[[], None]) -> float:
        """Seconds of what is enqueued after another run of the same: the device does not wait for the host then."""
        begin, end = Event(self.driver), Event(self.driver)
        before()
        begin.record()
        timed()
        end.record()
        return end.seconds_since(begin)

    def close(self) -> None:
        """Wait for all runs, after which memory goes with this."""
        self.driver.wait_for(DEFAULT_STREAM)


def runs_of(seconds: float, copies: int) -> int:
    """How many runs a graph has: each copy is read equally often, else the next graph would find some of them in L2."""
    seconds = max(seconds, 1e-9)
    whole = copies * max(1, min(MOST_RUNS, round(SECONDS / seconds)) // copies)
    return max(1, min(whole, round(LONGEST / seconds)))


def known(size: Size) -> int:
    """A size that does not differ from run to run."""
    assert isinstance(size, int), "steps with other sizes have no trial"
    return size


def _each(launches: Sequence[PreparedLaunch]) -> None:
    for launch in launches:
        launch.enqueue(DEFAULT_STREAM)


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED


def _numbers(count: int, dtype: DType) -> Array:
    if not dtype.is_float:
        return np.zeros(count, dtype.numpy)
    return np.random.default_rng(0).standard_normal(count, np.float32).astype(dtype.numpy)


def _packed(packed: Packed) -> Array:
    """Pack the weights that a kernel reads."""
    weights = [
        np.resize(_numbers(_DRAWN, v.dtype), tuple(map(known, v.tensor.shape))) for v in (packed.value, *packed.beside)
    ]
    return np.ascontiguousarray(packed.pack(*weights)).reshape(-1).view(np.uint8)


__all__ = ["Trial", "known", "runs_of"]
