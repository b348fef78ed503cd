"""A GPU in NumPy: scheduled kernels of the loop language, all threads of a block in lockstep.

It judges the schedule without a device: which thread does what, reductions over lanes and warps, shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dovetail.ir.literal import Array
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    Alloc,
    AllocBarriers,
    AllReduce,
    Amend,
    Arrive,
    AtomicUpdate,
    AwaitCopies,
    AwaitPhase,
    AwaitProducts,
    Ballot,
    Barrier,
    ClusterBarrier,
    CommitCopies,
    CopyAsync,
    CopyBox,
    CopyBulk,
    ExpectBytes,
    FenceShared,
    FromLane,
    GridBarrier,
    LoadMatrices,
    Loop,
    LoopKind,
    MultiplyMatrices,
    MultiplyShared,
    NarrowMatrices,
    Prefetch,
    Receive,
    Roles,
    ScaleMatrices,
    Set,
    Statement,
    Store,
    SubGrid,
    WarpBarrier,
    When,
)
from dovetail.kernels.loops.persistent.kernel import NEXT
from tests.targets.cuda.arithmetic import INTEGERS, apply, less
from tests.targets.cuda.cluster_blocks import run_cluster, run_roles
from tests.targets.cuda.copies import Copies
from tests.targets.cuda.places import Value
from tests.targets.cuda.resident_blocks import run_resident, run_sub_grid
from tests.targets.cuda.threads import NOT_WRITTEN, assert_whole_warps


class Machine(Copies):
    """One launch of a kernel on buffers of bytes."""

    def run(self) -> None:
        launch = self.kernel.launch
        if self.kernel.counter:
            with np.errstate(all="ignore"):
                return run_resident(self)
        assert launch is not None and self.grid % launch.cluster == 0, "clusters have all their blocks"
        with np.errstate(all="ignore"):
            for first in reversed(range(0, self.grid, launch.cluster)):
                if launch.cluster > 1 and any(isinstance(s, CopyBox) for s in everything(self.kernel.body)):
                    run_cluster(self, range(first, first + launch.cluster))
                    continue
                for part in _between_barriers(self.kernel.body):
                    # Blocks come backwards, those of a cluster, too: none may need what another writes before it.
                    for number in reversed(range(first, first + launch.cluster)):
                        self.one_block(number, part)

    def one_block(self, number: int, body: Sequence[Statement]) -> None:
        self.number, self.names = number, {}
        self.is_early = True
        self.statements(self.kernel.early, self.own.every)
        self.is_early = False
        self.statements(body, self.own.every)

    def statements(self, body: Sequence[Statement], mask: Array) -> None:
        for statement in body:
            self.memo = {}
            getattr(self, _METHODS[type(statement)])(statement, mask)

    def set(self, statement: Set, mask: Array) -> None:
        found, before = self.one(statement.value, mask), self.names.get(statement.name)
        if before is not None and not self.is_whole(mask):
            whole, earlier = self.filled(found), self.filled(before)
            found = whole if earlier.dtype != whole.dtype else np.where(mask, whole, earlier)
        self.names[statement.name] = found

    def store_one(self, statement: Store, mask: Array) -> None:
        self.store(statement.tensor, statement.at, self.value(statement.value, mask), mask)

    def when(self, statement: When, mask: Array) -> None:
        inside = self._inside(self.one(statement.condition, mask), mask)
        if inside is not None:
            self.statements(statement.body, inside)

    def _inside(self, holds: Value, mask: Array) -> Array | None:
        """The threads for which something holds; None where there are none."""
        if isinstance(holds, int):
            return mask if holds else None
        inside = mask & self.filled(holds).astype(bool, copy=False)
        count = np.count_nonzero(inside)
        return (self.own.every if count == self.block else inside) if count else None

    def sub_grid(self, statement: SubGrid, mask: Array) -> None:
        assert mask.all(), "every thread comes to work that is shared"
        run_sub_grid(self, statement)

    def alloc(self, statement: Alloc, mask: Array) -> None:
        pointer, nbytes = statement.pointer, statement.count * statement.dtype.itemsize
        if statement.space == "shared" and statement.offset is not None:
            assert statement.offset + nbytes <= len(self.shared), "allocations fit what a launch gives"
            self.buffers[pointer] = self.shared[statement.offset : statement.offset + nbytes], nbytes
        elif pointer not in self.buffers:
            each = 1 if statement.space == "shared" else self.block
            self.buffers[pointer] = np.full(each * nbytes, NOT_WRITTEN, np.uint8), nbytes

    def barrier_of_block(self, statement: Barrier, mask: Array) -> None:
        assert mask.all(), "every thread of the block comes to a barrier"

    def fence(self, statement: FenceShared, mask: Array) -> None:
        assert mask.all(), "every thread orders what it copied"

    def barrier_of_warps(self, statement: WarpBarrier, mask: Array) -> None:
        assert statement.warps in (1, 4), "lanes of a warp or of a warpgroup wait"
        _ = assert_whole_warps(mask, self.lanes) if statement.warps == 1 else self.groups_of(mask)

    def refuse(self, statement: Statement, mask: Array) -> None:
        raise AssertionError(_REFUSED[type(statement)])

    def all_reduce(self, statement: AllReduce, mask: Array) -> None:
        assert_whole_warps(mask, self.lanes)
        before = self.named(statement.name)
        rows = before.reshape(-1, self.lanes)
        distance = (statement.group or self.lanes) // 2
        while distance:
            rows = apply(statement.op, [rows, rows[:, np.arange(self.lanes) ^ distance]], statement.dtype)
            distance //= 2
        self.names[statement.name] = np.where(mask, rows.reshape(-1), before)

    def from_lane(self, statement: FromLane, mask: Array) -> None:
        assert_whole_warps(mask, self.lanes)
        asked = self.value(statement.lane, mask)
        assert ((asked >= 0) & (asked < self.lanes))[mask].all(), "a warp has the lane"
        self._keep(
            statement.name,
            self.named(statement.source)[self.threads // self.lanes * self.lanes + np.where(mask, asked, 0)],
            mask,
        )

    def ballot(self, statement: Ballot, mask: Array) -> None:
        assert_whole_warps(mask, self.lanes)
        kind = statement.dtype.numpy
        bits = self.named(statement.source).astype(kind).reshape(-1, self.lanes) << np.arange(self.lanes, dtype=kind)
        self._keep(statement.name, np.repeat(np.bitwise_or.reduce(bits, axis=1), self.lanes), mask)

    def _keep(self, name: str, found: Array, mask: Array) -> None:
        self.names[name] = np.where(mask, found, self.filled(self.names.get(name, found)))

    def await_products(self, statement: AwaitProducts, mask: Array) -> None:
        self.groups_of(mask)
        self.multiplied()

    def multiply_later(self, statement: MultiplyShared, mask: Array) -> None:
        self.multiplied()
        self.products.append(partial(self.multiply_shared, statement, self.matrices(statement, mask)))

    def update(self, statement: AtomicUpdate, mask: Array) -> None:
        """Atomic updates; threads come in reverse, since kernels must not depend on their order."""
        tensor = statement.tensor
        address, value = self.address(tensor, statement.at, mask), self.value(statement.value, mask)
        assert tensor.space == "global" and tensor.dtype.bits in (32, 64) and tensor.dtype.is_integer
        item = tensor.dtype.itemsize
        assert not (address[mask] % item).any(), "atomic updates are aligned"
        buffer = self.buffers[tensor.pointer][0]
        for at, x in zip(address[mask][::-1], value[mask][::-1], strict=True):
            one = buffer[at : at + item].view(tensor.dtype.numpy)
            one[...] = apply(statement.op, [one, np.asarray([x], tensor.dtype.numpy)], tensor.dtype)

    def start_pass(self, number: int) -> None:
        following = min(number + 1, self.kernel.passes - 1)
        self.names = {"pass": number, **{one.name: one.count for one in self.kernel.cycles}}
        for name in self.kernel.tabled:
            self.buffers[name], self.buffers[NEXT + name] = (self.buffers[f"{name}.{at}"] for at in (number, following))

    def roles(self, statement: Roles, mask: Array) -> None:
        run_roles([self], statement, mask)

    def loop(self, statement: Loop, mask: Array) -> None:
        variable, extent = statement.variable, self.one(statement.extent, mask)
        hidden = self.names.pop(variable, None)
        add, at, step = INTEGERS["add"], self.first(statement.kind), self.step(statement.kind)
        while (inside := self._inside(less(at, extent), mask)) is not None:
            self.names[variable] = at
            self.statements(statement.body, inside)
            at = add(at, step)
        self.names.pop(variable, None)
        if hidden is not None:
            self.names[variable] = hidden

    def first(self, kind: LoopKind) -> Value:
        """The first iteration of a loop, of each thread."""
        return self.number if kind == "block" else self.own.indices.get(kind, 0)

    def step(self, kind: LoopKind) -> int:
        """How many iterations run at once."""
        return {"block": self.grid, "warp": self.block // self.lanes, "thread": self.block, "lane": self.lanes}.get(
            kind, 1
        )


def _between_barriers(body: Sequence[Statement]) -> list[list[Statement]]:
    """The parts of a body between the barriers of its cluster. Nothing but memory goes from one to the next."""
    found: list[list[Statement]] = [[]]
    for statement in body:
        if isinstance(statement, ClusterBarrier):
            found.append([])
        else:
            found[-1].append(statement)
    return found


_METHODS = {
    Set: "set",
    Store: "store_one",
    When: "when",
    Loop: "loop",
    Alloc: "alloc",
    SubGrid: "sub_grid",
    Roles: "roles",
    Barrier: "barrier_of_block",
    WarpBarrier: "barrier_of_warps",
    FenceShared: "fence",
    AllReduce: "all_reduce",
    FromLane: "from_lane",
    Ballot: "ballot",
    AtomicUpdate: "update",
    Receive: "receive",
    CopyAsync: "copy",
    CommitCopies: "commit",
    AwaitCopies: "await_copies",
    Prefetch: "prefetch",
    CopyBulk: "copy_bulk",
    CopyBox: "copy_box",
    AllocBarriers: "alloc_barriers",
    ExpectBytes: "expect",
    Arrive: "arrive",
    AwaitPhase: "await_phase",
    LoadMatrices: "load_matrices",
    MultiplyMatrices: "multiply",
    ScaleMatrices: "scale",
    NarrowMatrices: "narrow",
    MultiplyShared: "multiply_later",
    AwaitProducts: "await_products",
    GridBarrier: "refuse",
    ClusterBarrier: "refuse",
    Amend: "refuse",
}
"""What runs a statement: a method by its name, since tests replace some."""
_REFUSED: dict[type[Statement], str] = {
    GridBarrier: "a grid waits outside of loops and conditions",
    ClusterBarrier: "a cluster waits outside of loops and conditions",
    Amend: "no kernel that runs has one",
}

__all__ = ["Machine"]
