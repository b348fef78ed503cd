"""The memory of a plan while it runs: bytes of each pool, arrays of the leaves, and the sizes that are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, cast

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dim import LARGEST_SIZE, Dim, Size, evaluate, symbol, symbols
from dovetail.ir.dtype import i64
from dovetail.ir.literal import Array
from dovetail.ir.solve import Found, solve_symbols
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops.generate import counting
from dovetail.plan.arena import Pool
from dovetail.plan.plan import Plan, Step
from dovetail.targets.runtime.arrays.buffer import HostAllocator
from dovetail.targets.runtime.arrays.feeds import actual_leaf
from dovetail.targets.runtime.arrays.memory_limit import check_fits
from dovetail.targets.runtime.building.lru import LRU
from dovetail.targets.runtime.calls.interpreter import evaluate_values

_GARBAGE = 0xA5
_MOST_SIZES = 32
"""Sets of symbols whose sizes are remembered."""


@dataclass(frozen=True, slots=True)
class _Located:
    """Where the plan puts a tensor."""

    root: Value
    dtype: np.dtype[Any]
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size
    is_static: bool
    """Whether all of these are numbers."""


def _located(plan: Plan, value: Value) -> _Located:
    at, shape = plan.locate(value), value.tensor.shape
    is_static = all(isinstance(size, int) for size in (*shape, *at.strides, at.offset))
    return _Located(at.root, value.dtype.numpy, tuple(shape), tuple(at.strides), at.offset, is_static)


class Memory:
    """Bytes of each pool, arrays of the leaves, and the sizes that are known."""

    def __init__(
        self,
        plan: Plan,
        prove: bool,
        allocator: HostAllocator | None = None,
        earlier: LRU[dict[Size, int]] | None = None,
    ) -> None:
        self.plan = plan
        self.prove = prove
        self.allocator = allocator or HostAllocator(
            plan.alignment, f"a run of {plan.graph.name}", plan.memory_limit, _GARBAGE if prove else None
        )
        self.pools: dict[Pool, Array] = {}
        self.own: dict[Value, Array] = {}
        """Memory outside the pools: leaves, and tensors whose size was computed at run time."""
        self.whole: dict[Value, Array] = {}
        """Tensors as the dense arrays that they came in; `own` gets their bytes when a view needs them."""
        self.computed: dict[Value, Array] = {}
        """Outputs that no step reads, as the arrays that a step on the host computed."""
        self.apart: frozenset[Value] = frozenset()
        """Tensors in memory of their own instead of their slot."""
        self.again: dict[Value, Callable[[], Array]] = {}
        """Leaves whose memory was freed, and functions that rebuild their content."""
        self.skipped: tuple[Step, ...] = ()
        """Steps of the bind phase that did not run, as no kernel reads what they make."""
        self.sizes: dict[str, int] = {}
        self.numbers: dict[Size, int] = {}
        """Sizes that are computed already, for the symbols that are known."""
        self.earlier = LRU[dict[Size, int]](_MOST_SIZES) if earlier is None else earlier
        """Computed sizes, by the symbols of earlier runs."""
        self.located: dict[Value, _Located] = {}
        """Where values are, as the plan says; runs share it."""

    def copy(self) -> Memory:
        """The same bytes; another run adds its own to the copy."""
        other = Memory(self.plan, self.prove, self.allocator, self.earlier)
        other.pools, other.own, other.whole = dict(self.pools), dict(self.own), dict(self.whole)
        other.sizes, other.again, other.located = dict(self.sizes), self.again, self.located
        other.skipped = self.skipped
        return other

    def with_own(self, own: Mapping[Value, Array]) -> Memory:
        """The same pools and sizes with these tensors in memory of their own, whatever their slots are."""
        other = self.copy()
        other.own |= own
        other.numbers, other.apart = self.numbers, frozenset(own)
        return other

    def give(self, leaves: Iterable[Value], arrays: Mapping[str, Array], *, bare: bool = False) -> None:
        """Inputs or parameters by name; their shapes bind symbols."""
        by_leaf = {v: arrays[v.attrs["name"]] for v in leaves}
        self.solve([actual_leaf(v, array, bare=bare) for v, array in by_leaf.items()])
        for value, array in by_leaf.items():
            self.own[value] = _bytes(np.asarray(array, value.dtype.numpy, order="C"))

    def solve(self, facts: Iterable[Found]) -> None:
        self._know(solve_symbols(facts, self.sizes))

    def know_size(self, name: str, size: int, step: Step) -> None:
        """Bind a symbol to the size that a step computed; a known one must be equal."""
        if self.sizes.get(name, size) != size:
            self.solve([Found(step.name, TensorType(i64, (symbol(name),)), (size,))])
        self._know({**self.sizes, name: size})

    def _know(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.numbers = self.earlier.get(frozenset(sizes.items()), dict[Size, int])

    def reserve(self, pool: Pool, size: Size) -> None:
        self.pools[pool] = self.allocate(self.number(size))

    def release(self, pool: Pool) -> None:
        del self.pools[pool]

    def allocate(self, count: int) -> Array:
        """Bytes with the alignment of the plan's offsets."""
        return self.allocator.allocate(count).array

    def number(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        number = self.numbers.get(size)
        if number is None:
            number = self.numbers[size] = evaluate(size, self.sizes)
        return number

    def view(self, value: Value) -> Array:
        """A tensor as a view of its memory."""
        whole = self.whole.get(value)
        if whole is not None:
            return whole
        located = self.located.get(value)
        if located is None:
            located = self.located[value] = _located(self.plan, value)
        shape, strides, offset = located.shape, located.strides, located.offset
        if not located.is_static:
            shape, strides = tuple(map(self.number, shape)), tuple(map(self.number, strides))
            offset = self.number(offset)
        if 0 in shape:
            return np.empty(cast(tuple[int, ...], shape), located.dtype)
        count = prod(cast("tuple[int, ...]", shape)) * located.dtype.itemsize
        if count > LARGEST_SIZE:
            # NumPy has no view of this many elements, though all of them may be one in memory.
            plan = self.plan
            check_fits(count, lambda: f"a result of {plan.graph.name}, {value.type},", plan.memory_limit)
        buffer, start = self.place(located.root)
        return np.ndarray(cast(Any, shape), located.dtype, buffer, cast(int, start + offset), cast(Any, strides))

    def store(self, value: Value, array: Array) -> None:
        """Write a result of a step. Where it has memory of its own, a dense array becomes that memory."""
        slot = self.plan.slots.get(value)
        in_heap = slot is not None and slot.pool == "heap" and slot.donor is None
        if in_heap and value not in self.apart and value not in self.plan.aliases and array.flags.c_contiguous:
            self.whole[value] = array
        else:
            self.view(value)[...] = array

    def copied(self, value: Value) -> Array:
        """A tensor in new memory; a broadcast tensor takes more bytes there than in its view."""
        array = self.computed.get(value)
        if array is not None:
            return owned(array)
        view = self.view(value)
        plan = self.plan
        check_fits(view.nbytes, lambda: f"a result of {plan.graph.name}, {value.type},", plan.memory_limit)
        return np.array(view, order="C")

    def results(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name: donated ones are the caller's input arrays, others are in memory of their own."""
        if not self.plan.donations:
            return {name: self.copied(value) for name, value in self.plan.graph.outputs.items()}
        donations = {d.output: d for d in self.plan.donations}
        results = {
            name: inputs[donations[name].input] if name in donations else self.copied(value)
            for name, value in self.plan.graph.outputs.items()
        }
        moved = [(d.input, self.plan.graph.outputs[d.output]) for d in donations.values() if d.reason]
        # An input may be the source of one copy and the target of another: such sources are read first.
        arrays = [self.copied(v) if self.plan.root_of(v).op is leaf.INPUT else self.view(v) for _, v in moved]
        for (name, _), array in zip(moved, arrays, strict=True):
            inputs[name][...] = array
        return results

    def place(self, root: Value) -> tuple[Array, int]:
        """The bytes that hold a root, and its offset in them."""
        if root.op is leaf.CONST:
            return _bytes(root.attrs["value"].array), 0
        slot = None if root in self.apart else self.plan.slots.get(root)
        if slot is None:
            return self._own(root, self.again.get(root)), 0
        if slot.donor is not None:
            return self._own(slot.donor), 0
        if slot.pool == "heap":
            return self._own(root, lambda: self.allocate(self.number(slot.size))), 0
        return self.pools[slot.pool], self.number(slot.offset)

    def _own(self, root: Value, make: Callable[[], Array] | None = None) -> Array:
        """The bytes of a tensor in memory of its own: of the array that it came in, or allocated now."""
        content = self.own.get(root)
        if content is None:
            whole = self.whole.get(root)
            assert whole is not None or make is not None, f"{root} has memory"
            content = self.own[root] = _bytes(make() if whole is None and make is not None else cast(Array, whole))
        return content

    def run_skipped(self) -> None:
        """Make up for the steps of the bind phase that did not run: a run by its meaning reads all that they make."""
        if self.skipped:
            self.reserve("scratch", self.plan.scratch_size)
            self.run(self.skipped)
            self.release("scratch")

    def run(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if step.value.op is counting and not self.prove:
                self._count(step)
                continue
            arrays = self.compute(step)
            results = step.results
            if self.plan.symbols:
                self.solve([Found(step.name, r.tensor, a.shape) for r, a in zip(results, arrays, strict=True)])
            if step.overs and self.prove:
                arrays = self.in_place(step, arrays)
            for result, array in zip(results, arrays, strict=True):
                self.view(result)[...] = array

    def _count(self, step: Step) -> None:
        """Find a size: `counting` without the checks of a general step, for loops do it in every trip."""
        value = step.value
        size: Size = value.attrs["count"]
        number = self.view(step.operands[0])
        count = int(number)
        check_fits(max(count, 0) * value.dtype.itemsize, f"counting up to {count:,}", self.plan.memory_limit)
        content = counting.compute(number, count=size)
        name = str(size)
        if isinstance(size, Dim) and symbols(size) == frozenset({name}):
            self.know_size(name, count, step)
        else:
            self.solve([Found(step.name, value.tensor, (count,))])
        self.view(value)[...] = content

    def compute(self, step: Step) -> list[Array]:
        operands = {v: self.view(v) for v in step.operands}
        return evaluate_values(step.results, operands, sizes=self.sizes, limit=self.plan.memory_limit)

    def in_place(self, step: Step, arrays: Sequence[Array]) -> list[Array]:
        """The results with second halves computed after the first are written: shows reads of overwritten memory."""
        for result, array in zip(step.results, arrays, strict=True):
            half = array.size // 2
            self.view(result).reshape(-1)[:half] = array.reshape(-1)[:half]
        again = self.compute(step)
        return [
            np.concatenate([a.reshape(-1)[: a.size // 2], b.reshape(-1)[a.size // 2 :]]).reshape(a.shape)
            for a, b in zip(arrays, again, strict=True)
        ]


def owned(array: Array) -> Array:
    """Return an array that a step computed, or a copy where it is a view of a larger one."""
    return array if array.base is None else np.array(array, order="C")


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
