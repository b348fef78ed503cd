"""Steps that each compute the rows of a token from the same rows, in one launch: a block for each token.

After the product of queries, keys and values of a prompt, heads are normed and rotated, and rows are appended to
caches. Each of these steps as a launch takes longer than its bytes do. What one of them leaves for the next is in
shared memory of the block. Steps of few tokens are stages of a cluster instead (`fused_launches.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace
from math import gcd

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.ir import leaf
from dovetail.ir.dim import Size, product
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.kernels.loops.body import body_of
from dovetail.kernels.loops.folds import is_reduction, reduced_axes
from dovetail.kernels.loops.ir import Alloc, Kernel, Tensor
from dovetail.kernels.loops.launch_fusion.composed import COPY_BYTES, is_stage
from dovetail.kernels.loops.launch_fusion.row_stages import Copied, RowStage, as_row_stages
from dovetail.kernels.request import Request
from dovetail.plan.alias import Alias, dense_strides
from dovetail.plan.plan import Step
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.launch_fusion.footprints import Footprints, taken
from dovetail.targets.gpu.loops import SHAPE
from dovetail.targets.gpu.select import Selection, make_kernels

Kept = Callable[[Hashable, Mapping[str, Value], Callable[[], Kernel]], GpuKernel]
"""A shared kernel by a key, its tensors, and what makes it."""
BLOCK = replace(SHAPE, row_warps=SHAPE.threads // SHAPE.lanes, row_threads=SHAPE.threads)
"""One block has all rows of a token."""
AXIS = -2
"""The axis of tokens: rows are the last one, heads are before it."""
TURNS = 4
"""Tiles of a step for a token, at most: more of them gain from blocks of their own."""
ROOM_BYTES = 16 << 10
"""Shared memory of a block for what steps leave for each other."""
COPIED_BYTES = 20 << 10
"""Shared memory of a block for what steps read."""
VECTOR_BYTES = 8
"""Bytes that a thread loads or stores at once: wider vectors leave lanes of a row of 128 elements without work."""
MOST_STEPS = 8
FEWEST = 2
"""Tokens for each block of a cluster up to which steps are its stages."""
_Own = tuple[Step, GpuKernel]
"""A step and its kernel."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A step as a block runs it for its token."""

    kernel: Kernel
    names: Mapping[str, int]
    """Which of the step's operands and results each pointer is for, in this order."""
    counts_tokens: bool
    """Whether its addresses are those of the block's token already."""


@dataclass(slots=True)
class RowLaunches:
    """Finds the steps of a plan that share a launch by tokens."""

    memory: Footprints
    selection: Selection
    kept: Kept
    known: dict[Hashable, _Part | None] = field(default_factory=dict[Hashable, _Part | None])
    """Parts by the kernel of the step, and which of its tensors are in shared memory: layers repeat."""

    def shared(self, steps: Sequence[tuple[Step, Kernels]]) -> list[tuple[Step, Kernels]]:
        """The kernels of each step, with one for those that share it."""
        shared, first = [*steps], 0
        while first < len(shared):
            run = self._run(shared, first)
            if len(run) < 2:
                first += 1
                continue
            kernel = self._as_one(run)
            for index in range(first, first + len(run)):
                shared[index] = (shared[index][0], (kernel,) if index == first + len(run) - 1 else None)
            first += len(run)
        return shared

    def _run(self, steps: Sequence[tuple[Step, Kernels]], first: int) -> list[_Own]:
        """The steps from the first on that have the same tokens, and may run for these in any order."""
        tokens, own = _tokens(steps[first][0]), list[_Own]()
        if tokens is None or tokens <= FEWEST * self.selection.device.cluster:
            return own
        for step, kernels in steps[first : first + MOST_STEPS]:
            if kernels is None or len(kernels) != 1 or kernels[0].has_more or kernels[0].counters:
                break
            if _tokens(step) != tokens or self._part(step, kernels[0], frozenset()) is None:
                break
            own.append((step, kernels[0]))
        while len(own) > 1 and not self._is_safe(own):
            own.pop()
        return own

    def _inner(self, run: Sequence[_Own]) -> dict[Value, Alloc]:
        """What these steps alone read, and the shared memory of a block for its rows."""
        read = [v for step, _ in run for v in step.operands]
        rooms: dict[Value, Alloc] = {}
        left = ROOM_BYTES
        for value in self.memory.inner([step for step, _ in run]):
            is_seen = any(self.selection.locations(v).root is value and v is not value for v in read)
            count = product(_row_shape(value))
            if is_seen or not isinstance(count, int) or count * value.dtype.itemsize > left:
                continue
            left -= count * value.dtype.itemsize
            rooms[value] = Alloc(f"rows{len(rooms)}", value.dtype, count, "shared")
        return rooms

    def _copied(self, run: Sequence[_Own], inner: Mapping[Value, Alloc]) -> dict[Value, Copied]:
        """What steps read of memory that is copied to shared memory first: a block waits for all of it once."""
        left = COPIED_BYTES
        copies: dict[Value, Copied] = {}
        for step, kernel in run:
            for v in [v for n, v in kernel.bindings.items() if n not in kernel.kernel.written]:
                if v in inner or v in copies or self._is_computed(v, run):
                    continue
                one = self._copy(v, step, len(copies))
                if one is None or one.room.count * v.dtype.itemsize > left:
                    continue
                left -= one.room.count * v.dtype.itemsize
                copies[v] = one
        return copies

    def _copy(self, value: Value, step: Step, number: int) -> Copied | None:
        """The copy of a token's rows, or of all of a vector; None where lines are not whole copies."""
        at, item = self.selection.locations(value), value.dtype.itemsize
        if not all([isinstance(n, int) for n in (at.offset, *value.shape, *at.strides)]):
            return None
        sizes, strides = [n for n in value.shape if isinstance(n, int)], [n for n in at.strides if isinstance(n, int)]
        is_index = step.value.op is ops.scatter_elements and value is step.value.operands[1]
        has_tokens = len(sizes) > 1 and sizes[AXIS] == _tokens(step) and not is_index
        axes = [a for a, stride in enumerate(strides) if stride and sizes[a] > 1]
        if has_tokens:
            # The block's token has its own lines.
            lines = [a for a in range(len(sizes) - 1) if a != len(sizes) + AXIS]
            order = [len(sizes) + AXIS, *lines]
            nbytes = sizes[-1] * item if strides[-1] == item else 0
        elif len(axes) == 1 and strides[axes[0]] == item:
            lines, order, nbytes = [], [], sizes[axes[0]] * item
        else:
            return None
        apart = (at.offset if isinstance(at.offset, int) else 1, *(strides[a] for a in order if sizes[a] > 1))
        if not nbytes or nbytes % COPY_BYTES or any(n % COPY_BYTES for n in apart):
            return None
        count = nbytes // item
        for a in lines:
            count *= sizes[a]
        source = Tensor(f"x{number}", value.dtype, (*(strides[a] for a in order), item))
        room = Alloc(f"copied{number}", value.dtype, count, "shared")
        return Copied(room, source, tuple([sizes[a] for a in lines]), nbytes, has_tokens)

    def _is_safe(self, run: Sequence[_Own]) -> bool:
        """Whether a block may be at any step while another is at any other: no step writes what another one uses, but
        for results, of which a block reads its own rows."""
        inner = self._inner(run)
        writes = [[v for v in step.results if v not in inner] for step, _ in run]
        for number, (step, kernel) in enumerate(run):
            read = [v for n, v in kernel.bindings.items() if n not in kernel.kernel.written and v not in inner]
            for other, wrote in enumerate(writes):
                if other == number:
                    continue
                own = {v for v in read if other < number and any(v is w for w in wrote)}
                used = [*writes[number], *(v for v in read if v not in own)]
                if self.memory.storages(wrote) & self.memory.storages(used):
                    return False
            if any(v in inner or self._is_computed(v, run) for v in taken(step)):
                return False
        return True

    def _is_computed(self, value: Value, run: Sequence[_Own]) -> bool:
        root = self.selection.locations(value).root
        return any(root is result for step, _ in run for result in step.results)

    def _part(self, step: Step, kernel: GpuKernel, inner: frozenset[Value]) -> _Part | None:
        """A step as one block runs it for its token; None where that cannot be."""
        tensors = (*step.operands, *step.results)
        key = kernel.kernel.identity, tuple([v in inner for v in tensors])
        if key not in self.known:
            self.known[key] = self._scattered(step, inner) or self._computed(step, inner)
        return self.known[key]

    def _scattered(self, step: Step, inner: frozenset[Value]) -> _Part | None:
        """An update of rows by token, whose kernel has a block for each."""
        value = step.value
        if value.op is not ops.scatter_elements or value.attrs["axis"] != AXIS:
            return None
        # Rows in shared memory are those of one token: it does not count there.
        places = {v: Alias(v, 0, _row_strides(v)) for v in step.operands[2:] if v in inner}
        kernels = self._kernels(step, places)
        launch = None if len(kernels) != 1 else kernels[0].kernel.launch
        if launch is None or launch.grid != _tokens(step) or launch.block != BLOCK.threads:
            return None
        return self._numbered(step, kernels[0], {}, counts_tokens=True)

    def _computed(self, step: Step, inner: frozenset[Value]) -> _Part | None:
        """A step of which each row needs rows of its token alone."""
        tokens = _tokens(step)
        if tokens is None or taken(step) or not self._is_by_token(step):
            return None
        places: dict[Value, Alias] = {}
        stands: dict[Value, Value] = {}

        def sliced(value: Value, stand: Value) -> Value:
            at = self.selection.locations(value)
            apart = gcd(*(n for n in (at.offset, at.strides[AXIS]) if isinstance(n, int)))
            known = isinstance(at.offset, int) and isinstance(at.strides[AXIS], int)
            # Vectors are as wide as the rows of all tokens are aligned.
            offset = 0 if value in inner else apart if known else 1
            places[stand] = Alias(stand, offset, _row_strides(value) if value in inner else at.strides)
            stands[stand] = value
            return stand

        operands: list[Value] = []
        for index, v in enumerate(step.operands):
            has_tokens = v.rank > 1 and v.shape[AXIS] == tokens
            operands.append(sliced(v, leaf.argument(index, _row_type(v))) if has_tokens else v)
        value = step.value.with_operands(tuple(operands))
        sliced(step.value, value)
        kernels = self._kernels(Step(step.name, value, step.phase), places)
        if len(kernels) != 1 or not is_stage(kernels[0].kernel, BLOCK.threads, TURNS):
            return None
        return self._numbered(step, kernels[0], stands, counts_tokens=False)

    def _kernels(self, step: Step, places: Mapping[Value, Alias]) -> tuple[GpuKernel, ...]:
        """The kernels of a step for one block, whose tensors are in some places."""
        was = self.selection.locations
        # A thread takes neighbours of what all blocks together have, but so few that all threads have some.
        tiles = replace(was.target.tiles, woven_elements=0, vector_bytes=VECTOR_BYTES)
        target = replace(was.target, tiles=tiles)

        def locate(value: Value) -> Alias:
            return places[value] if value in places else was(value)

        located = replace(was, locate=locate, target=target, known={})
        return make_kernels(step, replace(self.selection, locations=located), Request(shape=BLOCK))

    def _numbered(
        self, step: Step, kernel: GpuKernel, stands: Mapping[Value, Value], *, counts_tokens: bool
    ) -> _Part | None:
        tensors = (*step.operands, *step.results)
        names: dict[str, int] = {}
        for name, v in kernel.bindings.items():
            value = stands.get(v, v)
            names[name] = next((i for i, x in enumerate(tensors) if x is value), -1)
        return None if kernel.has_more or -1 in names.values() else _Part(kernel.kernel, names, counts_tokens)

    def _is_by_token(self, step: Step) -> bool:
        """Whether no element needs those of another token."""
        value = step.value
        if len(step.results) != 1 or not (isinstance(value.op, FusedOp) or value.op.elementwise):
            return False
        body = body_of(value, self.selection.locations)
        along = [v for v in (*body.order, *body.views) if v.op is not leaf.ARGUMENT]
        return all(
            v.op.elementwise
            or (is_reduction(v) and reduced_axes(v) == (-1,) and v.rank == v.operands[0].rank)
            or (v.op in (ops.concat, ops.part, ops.slice_) and v.attrs["axis"] == -1)
            for v in along
        )

    def _as_one(self, run: Sequence[_Own]) -> GpuKernel:
        """One kernel for several steps."""
        inner = self._inner(run)
        tokens = _tokens(run[0][0])
        assert tokens is not None, "it was checked"
        copied = self._copied(run, inner)
        names: dict[Value | str, str] = {v: one.source.pointer for v, one in copied.items()}
        bindings: dict[str, Value] = {one.source.pointer: v for v, one in copied.items()}
        inner |= {v: one.room for v, one in copied.items()}
        stages: list[RowStage] = []
        levels: dict[Value, int] = {}
        for step, alone in run:
            part = self._part(step, alone, frozenset(inner))
            assert part is not None, "it was checked"
            tensors = (*step.operands, *step.results)
            pointers: dict[str, str] = {}
            steps: dict[str, Size] = {}
            for name in part.kernel.pointers:
                bound: Value | str = tensors[part.names[name]] if name in part.names else name
                if isinstance(bound, Value) and bound in inner:
                    pointers[name] = inner[bound].pointer
                    continue
                pointers[name] = names.setdefault(bound, f"x{len(names)}")
                if isinstance(bound, Value):
                    bindings[pointers[name]] = bound
                    if not part.counts_tokens and bound.rank > 1 and bound.shape[AXIS] == tokens:
                        steps[name] = self.selection.locations(bound).strides[AXIS]
            level = max([levels[v] + 1 for v in step.operands if v in levels], default=0)
            levels |= dict.fromkeys(step.results, level)
            stages.append(RowStage(part.kernel, pointers, steps, level))
        checks = tuple([name for bound, name in names.items() if isinstance(bound, str)])
        again = [names[v] for v in levels if v in names and any(v in step.operands for step, _ in run)]
        key = tuple([(s.kernel.identity, *s.pointers.items(), *s.steps.items(), s.level) for s in stages])

        def composed() -> Kernel:
            rooms = [room for v, room in inner.items() if v not in copied]
            kernel = as_row_stages("row_stages", stages, rooms, tuple(copied.values()), tokens, BLOCK.threads)
            return replace(kernel, shared=tuple(again))

        return replace(self.kept(key, bindings, composed), checks=checks)


def _tokens(step: Step) -> int | None:
    """The tokens that a step has rows for."""
    value = step.value
    if not isinstance(value.type, TensorType):
        return None
    shape = value.operands[1].shape if value.op is ops.scatter_elements else value.shape
    count = shape[AXIS] if len(shape) > 1 else None
    return count if isinstance(count, int) else None


def _row_shape(value: Value) -> tuple[Size, ...]:
    """The shape of one token of a tensor."""
    return (*value.shape[:AXIS], 1, *value.shape[AXIS + 1 :])


def _row_type(value: Value) -> TensorType:
    return TensorType(value.dtype, _row_shape(value))


def _row_strides(value: Value) -> tuple[Size, ...]:
    """The strides of one token of a tensor alone; all tokens are at one place."""
    strides = dense_strides(_row_type(value))
    return (*strides[:AXIS], 0, *strides[AXIS + 1 :])


__all__ = ["MOST_STEPS", "RowLaunches"]
