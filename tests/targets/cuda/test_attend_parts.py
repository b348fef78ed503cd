"""The attention of a decoder's step as a part of a resident kernel: keys that are on their way before queries are
there, stages for the head of a block alone, and the times of its parts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.ir.dtype import bf16, bool_, i64
from dovetail.ir.graph import Graph
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    Amend,
    AwaitCopies,
    Call,
    CommitCopies,
    CopyAsync,
    CopyBulk,
    Elements,
    Extent,
    GridBarrier,
    Kernel,
    Load,
    Loop,
    MultiplyMatrices,
    Name,
    Number,
    Receive,
    Set,
    Statement,
    Store,
    SubGrid,
    Tensor,
    ThreadIndex,
    When,
    add,
    minimum,
    mul,
)
from dovetail.kernels.loops.launch_fusion.amend import opened
from dovetail.kernels.loops.launch_fusion.stage_narrowing import Index, narrowed
from dovetail.kernels.loops.persistent.passes import part_in
from dovetail.kernels.loops.persistent.trace import moments
from dovetail.kernels.request import Request, Role
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs import runner
from dovetail.targets.cuda.runs.run import steps_of
from tests.targets.cuda.simulated import SimulatedDriver, target_of
from tests.targets.cuda.test_decode import DECODE, SHAPES

LAUNCHED = replace(H200, multiprocessors=32, cluster=8, dependent_intensity=inf, bulk_copies=True, cooperative="off")
RESIDENT = replace(LAUNCHED, cooperative="on")
PARTS = 16
"""Blocks that share the keys of a head: two heads, 32 blocks."""


def _program(shape: Any, description: GpuDevice, *, traced: bool = False) -> tuple[Any, dict[str, Any]]:
    graph: Graph = DECODE.step_graph(shape)
    device = SimulatedDriver()
    device.description, device.traced = description, traced
    weights = DECODE.weights_of(graph)
    return dovetail.compile(graph, target=target_of(device)).bind(weights), weights


@cache
def resident_of(shape: Any) -> Kernel:
    program, _ = _program(shape, RESIDENT)
    every = [made.kernel for _, kernels in steps_of(program.plan, device=RESIDENT) for made in kernels or ()]
    (found,) = [kernel for kernel in every if kernel.counter]
    return found


def deep(name: str) -> Any:
    return replace(SHAPES[name], layers=4)


def attention_of(kernel: Kernel) -> SubGrid:
    """The part that copies keys."""
    (found,) = [s for s in kernel.body if isinstance(s, SubGrid) and _copies(s.body, "k_tile")]
    return found


def _copies(body: tuple[Statement, ...], target: str) -> bool:
    return any(isinstance(s, CopyAsync) and s.target.pointer.startswith(target) for s in everything(body))


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_keys_are_on_their_way_before_blocks_wait_for_queries(name: str) -> None:
    part = attention_of(resident_of(deep(name)))
    waits = [i for i, s in enumerate(part.body) if isinstance(s, Receive)]
    early, late = part.body[: waits[0]], part.body[waits[0] :]
    assert part.blocks == 2 * PARTS
    assert _copies(early, "k_tile") and _copies(early, "v_tile")
    # Small tensors are the first group, and are awaited while keys may be on their way.
    groups = sum(isinstance(s, CommitCopies) for s in early)
    awaited = next(s for s in late if isinstance(s, AwaitCopies))
    assert groups == 2 and awaited == AwaitCopies(1)
    rows = [s for s in everything(late) if isinstance(s, Set) and s.name.startswith("amended_row")]
    assert len(rows) == 2, "the row of the token replaces what was copied, of keys and of values"
    assert not any(isinstance(s, Amend) for s in everything(part.body))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_blocks_receive_the_rows_of_their_head_alone(name: str) -> None:
    shape = deep(name)
    part = attention_of(resident_of(shape))
    (wait,) = [s for s in part.body if isinstance(s, Receive)]
    counts = sorted(r.count for r in wait.receipts)
    assert counts == [shape.width, shape.width, shape.width * shape.heads // shape.kv_heads]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "cached", "blocks", "width", "hertz"),
    [
        ("qwen3", 243, 32, 32, 0.0),
        ("llama", 243, 32, 16, 0.0),
        ("qwen3", 600, 4, 128, 0.0),
        ("qwen3", 243, 32, 32, 1.8e9),
        ("qwen3", 600, 4, 128, 1.8e9),
    ],
)
def test_results_are_near_those_of_launches(
    name: str, cached: int, blocks: int, width: int, hertz: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of the simulator run backwards. After 243 tokens the new row is in the keys of the last part, which runs
    first: no other block has appended it before it is copied. With four blocks warps go through two rounds, or three:
    rows of 128 columns leave room for one round at a time in all warps. Where tensor cores lower the clock, lanes
    multiply."""
    monkeypatch.setattr("dovetail.kernels.gpu.attention.tile.PART_BUFFERS", 1)
    # Products of so few columns are on tensor cores, and their attention would be too.
    monkeypatch.setattr("dovetail.targets.gpu.launch_fusion.fused_launches.request_of_parts", _as_parts)
    shape = replace(deep(name), head_width=width)
    found: list[dict[str, Any]] = []
    for description in (LAUNCHED, RESIDENT):
        device = replace(description, multiprocessors=blocks, tensor_hertz=hertz)
        program, _ = _program(shape, device)
        arrays = program.to_device(DECODE.feeds_of(shape, cached))
        found.append({n: np.asarray(x.numpy(), np.float64) for n, x in program.run(arrays, outputs="device").items()})
        kernels = [made.kernel for _, own in steps_of(program.plan, device=device) for made in own or ()]
        attentions = [attention_of(kernel) for kernel in kernels if kernel.counter]
        by_lanes = [not any([isinstance(s, MultiplyMatrices) for s in everything(a.body)]) for a in attentions]
        assert all([is_so == (hertz > 0) for is_so in by_lanes])
    launched, resident = found
    for output, wanted in launched.items():
        error = np.linalg.norm(resident[output] - wanted)
        assert error <= 1e-2 * np.linalg.norm(wanted), output


def _as_parts(*_: Any) -> Request:
    return Request(Role.PART)


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "uses_them"), [("gpt2", False), ("llama_1b", True)])
def test_an_attention_among_products_on_tensor_cores_is_on_them_too(name: str, uses_them: bool) -> None:
    """The clock is the lower one by then: a gate of Llama-1B is a ring, and multiplies on tensor cores."""
    shape = replace(DECODE.SHAPES[name], layers=4)
    device = replace(RESIDENT, multiprocessors=H200.multiprocessors, tensor_hertz=1.8e9)
    graph: Graph = DECODE.step_graph(shape)
    steps = steps_of(dovetail.compile(graph, target="cuda").plan, device=device)
    resident = [made.kernel for _, kernels in steps for made in kernels or () if made.kernel.counter]
    attentions = [s for kernel in resident for s in kernel.body if isinstance(s, SubGrid) and _copies(s.body, "v_tile")]
    found = [s for attention in attentions for s in everything(attention.body)]
    assert found and any([isinstance(s, MultiplyMatrices) for s in found]) == uses_them


@pytest.mark.exhaustive
def test_moments_of_all_parts_are_kept_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[Any] = []
    made = runner.DeviceFrame

    def kept(*given: Any, **named: Any) -> Any:
        frames.append(made(*given, **named))
        return frames[-1]

    monkeypatch.setattr(runner, "DeviceFrame", kept)
    shape = deep("qwen3")
    program, _ = _program(shape, RESIDENT, traced=True)
    plain, _ = _program(shape, RESIDENT)
    feeds = DECODE.feeds_of(shape, 20)
    got, wanted = [p.run(p.to_device(feeds), outputs="device")["logits"].numpy() for p in (program, plain)]
    np.testing.assert_array_equal(got.view(np.uint16), wanted.view(np.uint16))
    at, one = next((i, k) for i, k in enumerate(frames[0].bound.loaded) if k.kernel.counters)
    kernel = one.kernel.kernel
    names = moments(kernel)
    parts = [part for part in map(part_in, kernel.body) if part is not None]
    assert {m.part for m in names} == {*range(len(parts))} and sum(m.after == "Receive" for m in names) >= 5
    count = len(names) * kernel.passes * RESIDENT.multiprocessors
    whole = np.empty(frames[0].counter.nbytes, np.uint8)
    frames[0].counter.download(whole, 0)
    end = frames[0].counters[at] + one.kernel.counter_bytes
    cycles = whole[end - 8 * count : end].view(np.int64).reshape(len(names), kernel.passes, -1)
    for number, part in enumerate(parts):
        own = cycles[[i for i, m in enumerate(names) if m.part == number], :, : part.blocks]
        ran = own.any(axis=(0, 2))  # some parts are in some passes alone
        own = own[:, ran]
        assert ran.any() and own.all() and (np.diff(own, axis=0) > 0).all(), number
        assert (np.diff(own, axis=1) > 0).all(), "passes follow each other"


def _elements(count: int, tile: int) -> tuple[Statement, ...]:
    """A stage of threads over the 6 rows of 32 columns of a tensor, `tile` elements at a time."""
    start, j, flat = Name("start"), Name("j"), add(Name("start"), Name("j"))
    row, column = Call("div", (flat, Extent(32)), i64), Call("rem", (flat, Extent(32)), i64)
    store = Store(Tensor("y", bf16, (64, 2)), (Name("row"), Name("column")), Number(1, bf16))
    left = Call("sub", (Extent(count), start), i64)
    body = (Set("row", row), Set("column", column), store)
    elements = Elements(start, tile, count)
    loop = Loop(j.name, minimum(Extent(tile), left), body, kind="thread", elements=elements)
    return (Loop("tile", Extent(-(-count // tile)), (Set("start", mul(Name("tile"), Extent(tile))), loop)),)


@pytest.mark.parametrize(("rows", "span"), [(1, 32), (2, 64)])
def test_stages_go_through_the_elements_of_their_slice_alone(rows: int, span: int) -> None:
    head = ThreadIndex("block")
    (outer,) = narrowed(_elements(6 * 32, 64), Index("row", rows, head))
    loops = [s for s in everything((outer,)) if isinstance(s, Loop) and s.kind == "thread"]
    assert [s.extent for s in loops] == [Extent(span)]
    starts = [s.value for s in everything((outer,)) if isinstance(s, Set) and s.name == "start"]
    assert starts == [mul(head, Extent(span))], "of the tiles one is left"
    (store,) = [s for s in everything((outer,)) if isinstance(s, Store)]
    cut = {1: (64, 2), 2: (128, 64, 2)}[rows]
    assert store.at[0] == head and store.tensor.strides == cut


def test_stages_whose_slices_are_not_in_one_piece_go_on_where_the_index_is_theirs() -> None:
    (outer,) = narrowed(_elements(6 * 32, 64), Index("column", 1, ThreadIndex("block")))
    assert isinstance(outer, Loop) and outer.extent == Extent(3)
    guards = [s for s in everything((outer,)) if isinstance(s, When)]
    assert [s.condition for s in guards] == [Call("equal", (Name("column"), ThreadIndex("block")), bool_)]


CACHE = Tensor("cache", bf16, (1 << 16, 64, 2))


def _appending(row: Any) -> tuple[Statement, ...]:
    """A stage that appends a row of 32 columns for the head of a block."""
    value = Load(Tensor("new", bf16, (64, 2), space="shared"), (Extent(0), Name("j")))
    store = Store(CACHE, (ThreadIndex("block"), Name("row"), Name("j")), value)
    return (Loop("j", Extent(32), (Set("row", row), store), kind="thread"),)


def _taking() -> Kernel:
    tile = Tensor("tile", bf16, (64, 2), space="shared")
    amend = Amend(CACHE, (ThreadIndex("block"),), Extent(16), 16, 32, tile, (Name("line"), Name("element")))
    copy = CopyAsync(
        tile, (Extent(0), Extent(0)), CACHE, (ThreadIndex("block"), Extent(16), Extent(0)), Number(True, bool_)
    )
    return Kernel("attend", ("cache",), (), "tile", (AwaitCopies(0), amend), opening=(copy, CommitCopies()))


def test_a_row_that_a_stage_appends_replaces_the_copied_one() -> None:
    position = Load(Tensor("position", i64, (8,)), (Extent(0),))
    kernel = _taking()
    found = opened(kernel, [_appending(position)], {}, 4)
    assert found.opening == kernel.opening
    (row,) = [s.value for s in everything(found.body) if isinstance(s, Set) and s.name == "amended_row"]
    assert row == Name("row_amended")
    (store,) = [s for s in everything(found.body) if isinstance(s, Store)]
    assert store.tensor.pointer == "tile" and isinstance(store.value, Load) and store.value.tensor.pointer == "new"


@pytest.mark.parametrize("why", ["each column has a row of its own", "another head", "an unknown tensor"])
def test_copies_start_after_stages_whose_rows_are_not_known(why: str) -> None:
    stage = _appending(Extent(3))
    if why == "each column has a row of its own":
        stage = _appending(Load(Tensor("position", i64, (8,)), (Name("j"),)))
    elif why == "another head":
        (loop,) = stage
        assert isinstance(loop, Loop) and isinstance(loop.body[1], Store)
        moved = replace(loop.body[1], at=(Extent(0), *loop.body[1].at[1:]))
        stage = (replace(loop, body=(loop.body[0], moved)),)
    else:
        stage = (Store(Tensor("other", bf16, (2,)), (Extent(0),), Number(0, bf16)),)
    kernel = _taking()
    found = opened(kernel, [stage], {}, 4)
    assert found.opening == () and found.body == (*kernel.opening, AwaitCopies(0))


def test_weights_of_later_parts_start_once_blocks_have_received_their_words() -> None:
    """Words would queue after them."""
    kernel = resident_of(deep("qwen3"))
    copies = [i for i, s in enumerate(kernel.body) if not isinstance(s, GridBarrier) and _is_bulk(s)]
    assert copies
    for at in copies:
        before = next(s for s in reversed(kernel.body[:at]) if not isinstance(s, CommitCopies) and not _is_bulk(s))
        part = part_in(before)
        assert part is not None and isinstance(part.body[-1], Receive)


def _is_bulk(statement: Statement) -> bool:
    return any(isinstance(s, CopyBulk) for s in everything((statement,)))
