"""What hides latency changes no result, so that results alone do not show that it is right: keys that are prefetched,
small tensors that come near before blocks wait, sums that take turns."""

from __future__ import annotations

import operator
from collections import defaultdict
from dataclasses import replace
from math import inf
from typing import Any

import pytest

import dovetail
from dovetail import Graph, ops
from dovetail.ir.dtype import bf16
from dovetail.ir.leaf import input, param
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    Alloc,
    AwaitCopies,
    Barrier,
    Call,
    CommitCopies,
    CopyAsync,
    Extent,
    Kernel,
    Loop,
    MultiplyMatrices,
    Name,
    Receive,
    Statement,
    reads,
)
from dovetail.kernels.loops.persistent.passes import part_in
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import kernels_of, steps_of
from tests.targets.cuda import lockstep
from tests.targets.cuda.prefetched import Bytes, prefetched_bytes
from tests.targets.cuda.simulated import SimulatedDriver, target_of
from tests.targets.cuda.test_decode import DECODE, SHAPES

LAUNCHED = replace(H200, multiprocessors=32, cluster=8, dependent_intensity=inf, bulk_copies=True, cooperative="off")
CACHED = 20


def _device(description: Any) -> SimulatedDriver:
    found = SimulatedDriver()
    found.description = description
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_each_block_prefetches_the_keys_and_values_that_it_copies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = prefetched_bytes(monkeypatch)
    copied: Bytes = defaultdict(set)
    copy = lockstep.Machine.copy

    def noted(self: Any, statement: Any, mask: Any) -> None:
        copy(self, statement, mask)
        if self.kernel.name == "attend" and statement.source.pointer in ("k", "v"):
            inside = self.value(statement.inside, mask).astype(bool) & mask
            for at in self.address(statement.source, statement.source_at, inside)[inside]:
                copied[statement.source.pointer, self.number].update(range(int(at), int(at) + statement.nbytes))

    monkeypatch.setattr(lockstep.Machine, "copy", noted)
    graph: Graph = DECODE.step_graph(SHAPES[name])
    program = dovetail.compile(graph, target=target_of(_device(LAUNCHED))).bind(DECODE.weights_of(graph))
    program.run(DECODE.feeds_of(SHAPES[name], CACHED))
    assert {pointer for pointer, _ in copied} == {"k", "v"}
    assert asked == copied


def _resident(name: str) -> Kernel:
    description = replace(LAUNCHED, cooperative="on")
    graph: Graph = DECODE.step_graph(replace(SHAPES[name], layers=5))
    plan = dovetail.compile(graph, target=target_of(_device(description))).plan
    every = [made.kernel for _, kernels in steps_of(plan, device=description) for made in kernels or ()]
    (found,) = [kernel for kernel in every if kernel.counter]
    return found


@pytest.mark.exhaustive
def test_small_tensors_come_near_before_blocks_wait_and_are_awaited_before_they_are_read() -> None:
    kernel = _resident("qwen3")
    rooms = {s.pointer: s for s in kernel.body if isinstance(s, Alloc) and s.pointer.startswith("near_")}
    assert rooms, "gains and rotations are small"
    read: set[str] = set()
    for part in [part for part in map(part_in, kernel.body) if part is not None]:
        kinds = [type(s) for s in part.body]
        own = {t.pointer for t, _ in reads(part.body)} & {*rooms}
        if not own:
            continue
        read |= own
        arrive = kinds.index(AwaitCopies)
        before, after = part.body[:arrive], part.body[arrive:]
        assert not {t.pointer for t, _ in reads(before)} & own, "nothing is read before it has arrived"
        later = kinds[:arrive].count(CommitCopies) - 1
        assert later >= 0 and after[0] == AwaitCopies(later) and isinstance(after[1], Barrier)
        assert _copied_bytes(before) == {n: rooms[n].count * rooms[n].dtype.itemsize for n in own}
        waits = [i for i, kind in enumerate(kinds) if kind is Receive]
        assert all(kinds.index(CommitCopies) < i < arrive for i in waits), "copies are on their way while blocks wait"
    assert read == {*rooms}


def _copied_bytes(body: tuple[Statement, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for loop in [s for s in body if isinstance(s, Loop)]:
        for s in [s for s in loop.body if isinstance(s, CopyAsync)]:
            size: Any = loop.extent
            found[s.target.pointer] = found.get(s.target.pointer, 0) + s.nbytes * int(size.size)
    return found


def test_products_that_follow_each_other_add_to_different_sums() -> None:
    """The next product to the same sums would wait for the one before."""
    value = ops.matmul(input("x", bf16[1, 1024]), param("w", bf16[1024, 1024]))
    whole = replace(LAUNCHED, multiprocessors=132)
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": value}), target="cuda"), device=whole)
    steps = [s for s in everything(made.kernel.body) if isinstance(s, Loop) and s.variable == "step"]
    (step,) = [s for s in steps if any(isinstance(p, MultiplyMatrices) for p in everything(s.body))]
    (sums,) = [a for a in everything(made.kernel.body) if isinstance(a, Alloc) and a.pointer == "sums"]
    size: Any = step.extent
    each = [p for p in everything(step.body) if isinstance(p, MultiplyMatrices)]
    places = [_number(p.sums_at[0], number) for number in range(int(size.size)) for p in each]
    assert len(places) == 1024 * 8 // (8 * 16 * 16), "16 columns of 16 of k, or 8 columns twice, in eight warps"
    assert {*places} == {*range(sums.count // 4)} and sums.count == 4 * 4
    for first in range(len(places) - 3):
        assert len({*places[first : first + 4]}) == 4, "four products that follow each other"


def _number(index: Any, step: int) -> int:
    """An index of a step."""
    match index:
        case Extent(size):
            return int(str(size))
        case Name("step"):
            return step
        case Call(op, (x, y)):
            ways = {"add": operator.add, "mul": operator.mul, "rem": operator.mod}
            return ways[op](_number(x, step), _number(y, step))
        case _:
            raise AssertionError(index)
