"""Which tensors the parts of a persistent kernel send to each other, so that blocks wait at no barrier of the grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import field, replace

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.loops.analysis import everything, pointers_in
from dovetail.kernels.loops.ir import Alloc, AtomicUpdate, CopyAsync, CopyBox, CopyBulk, Kernel, reads
from dovetail.kernels.loops.persistent.words import SIZES, VECTOR, Received, Sent
from dovetail.plan.alias import is_dense
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.gpu.launch_fusion.footprints import Footprints

NEAR_BYTES = 4096
"""Bytes of a tensor that every block copies to shared memory for one part, at most."""
RECEIVED_BYTES = 32 << 10
"""Bytes of a tensor that blocks send: a block receives its words, twice as many bytes, from L2 in less time than a
barrier of the grid takes, and larger tensors go through memory."""
Pointer = tuple[int, str]
"""A pointer of a part."""


@dataclass(slots=True)
class Exchange:
    """The tensors that parts send, by the pointers of the parts that write and read them."""

    memory: Footprints
    passes: Sequence[Sequence[GpuKernel | None]]
    """The kernels of each pass, by the number of the part; None where a pass does not run it."""
    steps: range
    """The numbers of the steps that the kernel has."""
    most: int = RECEIVED_BYTES
    """Bytes of a tensor that is sent, at most; 0 sends nothing."""
    sent: dict[Pointer, Sent] = field(default_factory=dict[Pointer, Sent])
    received: dict[Pointer, Received] = field(default_factory=dict[Pointer, Received])
    kept: set[Pointer] = field(default_factory=set[Pointer])
    """What the last pass also writes to memory, for kernels that read it later."""
    nbytes: int = 0
    """Bytes of the words of a pass."""
    loads: dict[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])
    """By the number of a part, the pointers through which it loads."""

    def __post_init__(self) -> None:
        for number in range(len(self.passes[0])):
            part = self.part(number)
            for name in part.kernel.written:
                if name in part.kernel.exchanged:
                    self._exchange_workspace(number, name)
                elif name in part.bindings:
                    self._exchange(number, name)
        if any(n in self._loaded(i) and (i, n) not in self.received for i, n in self.sent):
            # No part sends what a kernel finds where it writes.
            self.sent, self.received, self.kept, self.nbytes = {}, {}, set(), 0

    def of(self, number: int) -> dict[int, GpuKernel]:
        """The kernels of a part, by the passes that run it."""
        every = [(at, kernels[number]) for at, kernels in enumerate(self.passes)]
        return {at: kernel for at, kernel in every if kernel is not None}

    def part(self, number: int) -> GpuKernel:
        """The kernel of a part in the first pass that runs it."""
        return next(iter(self.of(number).values()))

    def plain(self, number: int, kernel: GpuKernel) -> GpuKernel:
        """A part without what it sends and receives."""
        gone = {n for i, n in (*self.sent, *self.received) if i == number}
        left = {n: v for n, v in kernel.bindings.items() if n not in gone}
        return replace(kernel, bindings=left, workspace={n: at for n, at in kernel.workspace.items() if n not in gone})

    def awaits_passes(self, inner: Mapping[Value, Size]) -> bool:
        """Whether a pass needs more of an earlier one than it receives. Inner tensors are in the same place in all."""
        plain = self._plain()
        if any(self.memory.locations(v).root in inner for kernel in plain[0] for v in kernel.bindings.values()):
            return True
        used, written, has_workspace = set[Value](), set[Value](), False
        for kernels in plain:
            uses = set[Value]().union(*map(self.memory.used, kernels))
            writes = set[Value]().union(*map(self.memory.written, kernels))
            needs = any(kernel.workspace for kernel in kernels)
            if written & uses or used & writes or (has_workspace and needs):
                return True
            used, written, has_workspace = used | uses, written | writes, has_workspace or needs
        return False

    def near(self, number: int) -> dict[str, Alloc]:
        """Shared memory for the small tensors that a part loads and no part writes."""
        wrote = {memory for kernels in self._plain() for one in kernels for memory in self.memory.written(one)}
        kernel, rooms = self.part(number).kernel, dict[str, Alloc]()
        copied = {s.source.pointer for s in everything(kernel.body) if isinstance(s, (CopyAsync, CopyBulk, CopyBox))}
        for name in self.plain(number, self.part(number)).bindings:
            if name in kernel.written or name in copied or name in pointers_in(kernel.early):
                continue
            every = [self.memory.locations(one.bindings[name]) for one in self.of(number).values()]
            root = every[0].root
            nbytes, count = root.tensor.bytes, product(root.shape)
            if not isinstance(nbytes, int) or not isinstance(count, int) or nbytes > NEAR_BYTES or nbytes % 4:
                continue
            starts = all(at.offset == 0 and self.memory.locations.alignment({"": at.root})[""] >= 16 for at in every)
            if starts and not any(self.memory.storage(at.root) in wrote for at in every):
                rooms[name] = Alloc(f"near_{name}", root.dtype, count, "shared")
        return rooms

    def _plain(self) -> list[list[GpuKernel]]:
        """The kernels of each pass without what they send and receive."""
        return [[self.plain(i, kernel) for i, kernel in enumerate(of) if kernel is not None] for of in self.passes]

    def _room(self, count: int, item: int) -> int:
        first = self.nbytes
        self.nbytes += -(-2 * count * item // 128) * 128
        return first

    def _exchange_workspace(self, number: int, name: str) -> None:
        """What blocks of a cluster leave for each other."""
        part = self.part(number)
        if [*part.workspace] != [name] or not isinstance(part.workspace_bytes, int) or part.workspace[name] != 0:
            return
        count = part.workspace_bytes // f32.itemsize
        if not self.most:
            return
        first = self._room(count, f32.itemsize)
        self.sent[number, name] = Sent(first)
        self.received[number, name] = Received(first, f32, count)

    def _exchange(self, number: int, name: str) -> None:
        """Send what a part writes through a pointer, where all that read it can receive it."""
        roots = {at: kernel.bindings[name] for at, kernel in self.of(number).items()}
        one = next(iter(roots.values()))
        count, dtype, item = product(one.shape), one.dtype, one.dtype.itemsize
        if item not in SIZES or not isinstance(count, int) or 2 * count * item % VECTOR or count * item > self.most:
            return
        whole = all(self.memory.is_whole(root) for root in roots.values())
        if not whole or not _only_stores(self.part(number).kernel, name):
            return
        readers = self._readers(number, roots)
        outside = [self._is_read_outside(root) for root in roots.values()]
        if not readers or any(outside[:-1]):
            return
        if any(
            2 * offset % VECTOR or not _receives(self.part(i).kernel, n) for (i, n), (offset, _, _) in readers.items()
        ):
            return
        first = self._room(count, item)
        self.sent[number, name] = Sent(first)
        if outside[-1]:
            self.kept.add((number, name))
        for at, (offset, elements, is_before) in readers.items():
            self.received[at] = Received(first + 2 * offset, dtype, elements, is_before)

    def _readers(self, number: int, roots: Mapping[int, Value]) -> dict[Pointer, tuple[int, int, bool]]:
        """The pointers that read a tensor: bytes to the first element, elements, and whether in the next pass; none
        where passes differ."""
        readers: dict[Pointer, tuple[int, int, bool]] = {}
        dtype = next(iter(roots.values())).dtype
        for i, n in self._every_read():
            values = {at: self._read(kernel, n) for at, kernel in self.of(i).items()}
            places = {at: self.memory.locations(v) for at, v in values.items()}
            same = [here.root is roots.get(at) for at, here in places.items()]
            later = [here.root is roots.get(at - 1) for at, here in places.items() if at]
            if not any(same) and not any(later):
                continue
            if not all(is_dense(v.tensor, places[at].strides) for at, v in values.items()):
                return {}  # blocks receive elements that follow each other
            (value, *_), offsets = values.values(), {here.offset for here in places.values()}
            elements, (offset, *others) = product(value.shape), offsets
            is_one_way = (all(same) and number < i and not any(later)) or (all(later) and not any(same))
            if not is_one_way or others or not isinstance(offset, int) or not isinstance(elements, int):
                return {}
            if 2 * elements * value.dtype.itemsize % VECTOR or value.dtype is not dtype:
                return {}
            readers[i, n] = offset, elements, not all(same)
        return readers

    def _every_read(self) -> Iterator[Pointer]:
        for i in range(len(self.passes[0])):
            part = self.part(i)
            loaded = self._loaded(i)
            for n in part.kernel.pointers:
                if n in part.bindings and (n not in part.kernel.written or n in loaded):
                    yield i, n

    def _loaded(self, number: int) -> frozenset[str]:
        """The pointers through which a part loads."""
        if number not in self.loads:
            self.loads[number] = frozenset([t.pointer for t, _ in reads(self.part(number).kernel.body)])
        return self.loads[number]

    def _read(self, kernel: GpuKernel, name: str) -> Value:
        """What a kernel reads through a pointer: where it works in place, what is there before."""
        value = kernel.bindings[name]
        return self.memory.overwritten.get(value, value) if name in kernel.kernel.written else value

    def _is_read_outside(self, root: Value) -> bool:
        """Whether a step that is not in the kernel reads a tensor, or it is a result of the graph."""
        reading: Set[int] = {*self.memory.reading.get(root, ())}
        return self.memory.readers.get(root, 0) > len(reading) or any(n not in self.steps for n in reading)


def _only_stores(kernel: Kernel, name: str) -> bool:
    """Whether a kernel only stores elements through a pointer."""
    atomic = any(isinstance(s, AtomicUpdate) and s.tensor.pointer == name for s in everything(kernel.body))
    return not atomic


def _receives(kernel: Kernel, name: str) -> bool:
    """Whether a kernel only loads elements, or copies of 16 bytes, through a pointer."""
    bulk = [s.source.pointer for s in everything(kernel.body) if isinstance(s, (CopyBulk, CopyBox))]
    return name not in bulk and name not in pointers_in(kernel.early)


__all__ = ["RECEIVED_BYTES", "Exchange"]
