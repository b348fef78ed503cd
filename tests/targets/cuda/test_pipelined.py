"""Products with a producer: roles that wait for each other, in lockstep with few multiprocessors, and tiles as PTX."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from math import erf, inf
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import dovetail
from dovetail import Graph, Value, library, ops
from dovetail.codegen.llvm.maths import tables
from dovetail.ir.dtype import bf16, f16, f32
from dovetail.ir.leaf import input, param
from dovetail.kernels.gpu.gemm import tile as tiles
from dovetail.kernels.gpu.gemm.pipelined_tile import PipelinedTile
from dovetail.kernels.gpu.gemm.tile import PIPELINED_TILES, BlockTile
from dovetail.kernels.gpu.widened import widened
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    ZERO,
    AllocBarriers,
    AwaitPhase,
    Call,
    CopyBox,
    Extent,
    Kernel,
    Launch,
    Name,
    Number,
    Roles,
    Store,
    Tensor,
)
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import CudaGraph, kernels_of
from tests.targets.cuda.graphs import Case, x_of
from tests.targets.cuda.judged import check, feeds_of, in_lockstep
from tests.targets.cuda.lockstep import Machine
from tests.targets.cuda.phases import PhaseBarrier, boxed
from tests.targets.cuda.simulated import SimulatedDriver, target_of

SMALL = BlockTile(64, 64, 4, 1, 3, by_warpgroup=True)
TALL = BlockTile(128, 128, 8, 1, 2, by_warpgroup=True)
FEW = replace(H200, multiprocessors=2)
"""Blocks go on to further tiles, in the middle of a phase."""
_TURNED = (-1, -2)


def _odd_columns() -> Value:
    """Like logits over 50,257 tokens: lines of factors are aligned, and those of the result are not."""
    w = ops.permute(x_of(f16, 101, 72, name="w"), order=_TURNED)
    return library.matmul_add(x_of(f16, 70, 72), w, x_of(f16, 70, 101, name="z"))


PRODUCTS: dict[str, tuple[BlockTile, Value]] = {
    "bias": (
        SMALL,
        library.linear(x_of(f16, 130, 200), x_of(f16, 200, 136, name="w"), x_of(f16, 136, name="b"), act="relu"),
    ),
    "added": (
        TALL,
        library.matmul_add(x_of(bf16, 130, 136), x_of(bf16, 136, 136, name="w"), x_of(bf16, 130, 136, name="z")),
    ),
    "streams": (
        BlockTile(64, 128, 4, 1, 2, by_warpgroup=True),
        library.swiglu(x_of(f16, 70, 136), x_of(f16, 136, 72, name="u"), x_of(f16, 136, 72, name="g")),
    ),
    "left_turned": (SMALL, ops.matmul(ops.permute(x_of(f16, 72, 136), order=_TURNED), x_of(f16, 72, 72, name="w"))),
    "right_turned": (SMALL, ops.matmul(x_of(f16, 70, 72), ops.permute(x_of(f16, 72, 72, name="w"), order=_TURNED))),
    "odd_columns": (SMALL, _odd_columns()),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_blocks_that_stay_compute_all_tiles(name: str) -> None:
    tile, value = PRODUCTS[name]
    case = Case({"y": value}, scale=8.0)
    feeds = feeds_of(Graph.of(case.outputs), {})
    with patch.object(tiles, "PIPELINED_TILES", (tile,)):
        ((_, made),) = kernels_of(make_plan(Graph.of(case.outputs), target="cuda"), device=FEW)
        assert made.kernel.maps and made.kernel.launch is not None and made.kernel.launch.grid == 2
        check(case, in_lockstep(case, feeds, device=FEW), feeds)


@pytest.mark.parametrize("depth", [72, 400])
def test_the_first_columns_of_weights_come_before_other_kernels_end(depth: int) -> None:
    """Also where there are fewer rounds than stages, and where blocks go on to further tiles."""
    x, w = input("x", f16[120, depth]), param("w", f16[depth, 136])
    device = SimulatedDriver()
    device.description = replace(H200, multiprocessors=2, cluster=8, dependent_intensity=inf, cooperative="off")
    random = np.random.default_rng(2)
    a, b = (random.normal(size=s).astype(np.float16) for s in ((120, depth), (depth, 136)))
    with patch.object(tiles, "PIPELINED_TILES", (SMALL,)):
        graph = Graph.of({"y": ops.matmul(x, w)})
        ((_, made),) = kernels_of(make_plan(graph, target="cuda"), device=device.description)
        found = CudaGraph(make_plan(graph, target="cuda"), lambda: device).bind({"w": b}).run({"x": a})["y"]
    boxes = [s for s in everything(made.kernel.early) if isinstance(s, CopyBox)]
    assert [box.source.pointer for box in boxes] == ["x1"] and "x1" in made.kernel.constants
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(found.astype(np.float64) - exact) <= 1e-3 * np.linalg.norm(exact)


def test_weights_are_transposed_where_their_streams_have_no_whole_panels() -> None:
    """Two streams of 96 columns are a tile of 192; along columns they would be two panels of 128."""
    u, g = (param(name, f16[136, 96]) for name in "ug")
    fed = input("u", f16[136, 96]), input("g", f16[136, 96])
    x = input("x", f16[120, 136])
    random = np.random.default_rng(2)
    a, b, c = (random.normal(size=s).astype(np.float16) / 4 for s in ((120, 136), (136, 96), (136, 96)))
    device = SimulatedDriver()
    wide = [BlockTile(64, columns, 4, 1, 2, by_warpgroup=True) for columns in (256, 192)]
    with patch.object(tiles, "PIPELINED_TILES", tuple(wide)):
        plans = [make_plan(Graph.of({"y": library.swiglu(x, *of)}), target="cuda") for of in ((u, g), fed)]
        packed = [made.packed for plan in plans for _, made in kernels_of(plan)]
        found = CudaGraph(plans[0], lambda: device).bind({"u": b, "g": c}).run({"x": a})["y"]
    assert [one.layout for one in packed[0].values()] == ["transposed"] * 2 and not packed[1]
    up, gate = (a.astype(np.float64) @ w.astype(np.float64) for w in (b, c))
    exact = gate / (1 + np.exp(-gate)) * up
    assert np.linalg.norm(found.astype(np.float64) - exact) <= 1e-3 * np.linalg.norm(exact)


def test_weights_whose_lines_cannot_be_copied_are_transposed() -> None:
    """Lines of 101 columns are no multiple of 16 bytes, in memory and of the result."""
    x, u, g = input("x", f16[120, 136]), param("u", f16[136, 101]), param("g", f16[136, 101])
    random = np.random.default_rng(2)
    a, b, c = (random.normal(size=s).astype(np.float16) / 4 for s in ((120, 136), (136, 101), (136, 101)))
    graph = Graph.of({"y": library.swiglu(x, u, g), "z": ops.matmul(x, param("w", f16[136, 99]))})
    device = SimulatedDriver()
    with patch.object(tiles, "PIPELINED_TILES", (BlockTile(64, 64, 4, 1, 3, by_warpgroup=True),)):
        made = [one for _, one in kernels_of(make_plan(graph, target="cuda"))]
        weights = {"u": b, "g": c, "w": c[:, :99]}
        found = CudaGraph(make_plan(graph, target="cuda"), lambda: device).bind(weights).run({"x": a})
    assert all(one.kernel.maps for one in made) and [len(one.packed) for one in made] == [2, 1]
    up, gate = (a.astype(np.float64) @ w.astype(np.float64) for w in (b, c))
    for name, exact in (("y", gate / (1 + np.exp(-gate)) * up), ("z", gate[:, :99])):
        assert np.linalg.norm(found[name].astype(np.float64) - exact) <= 1e-3 * np.linalg.norm(exact), name


def test_unaligned_lines_that_no_one_packs_are_loaded_one_by_one() -> None:
    case = Case({"y": ops.matmul(x_of(f16, 70, 72), x_of(f16, 72, 101, name="w"))}, scale=8.0)
    ((_, made),) = kernels_of(make_plan(Graph.of(case.outputs), target="cuda"))
    feeds = feeds_of(Graph.of(case.outputs), {})
    assert not made.kernel.maps and not made.packed
    check(case, in_lockstep(case, feeds), feeds)


@pytest.mark.parametrize("tile", PIPELINED_TILES, ids=lambda t: f"{t.rows}x{t.columns}x{t.stages}")
def test_every_tile_becomes_ptx(tile: BlockTile) -> None:
    x, w = x_of(bf16, 4096, 768), x_of(bf16, 768, 768, name="w")
    # Tiles of fewer columns than a box has are for weights whose lines are along k.
    right = ops.permute(w, order=(-1, -2)) if tile.columns % 64 else w
    with patch.object(tiles, "PIPELINED_TILES", (tile,)):
        ((_, made),) = kernels_of(make_plan(Graph.of({"y": ops.matmul(x, right)}), target="cuda"))
    ptx = to_ptx(made.text, "sm_90a")
    assert "cp.async.bulk.tensor.2d" in ptx and "mbarrier.try_wait.parity" in ptx and "setmaxnreg.inc" in ptx
    assert "__local_depot" not in ptx, "nothing is kept outside of registers"
    assert ptx.count("cvta.param.u64") >= 2, "tensor maps stay where the driver puts them"


def _as_it_is(tile: PipelinedTile, *_: object) -> PipelinedTile:
    return tile


def test_a_stage_for_each_round_waits_for_no_empty_one() -> None:
    """A block with one tile and few rounds fills no stage twice; bits are those of the loop."""
    x, w, random = input("x", f16[128, 192]), param("w", f16[192, 64]), np.random.default_rng(1)
    a, b = (random.standard_normal(size).astype(np.float16) for size in ((128, 192), (192, 64)))
    found: list[Any] = []
    for change in (nullcontext(), patch.object(PipelinedTile, "at_once", _as_it_is)):
        with change:
            plan = make_plan(Graph.of({"y": ops.matmul(x, w)}), target="cuda")
            ((_, made),) = kernels_of(plan)
            barriers = {s.name for s in everything(made.kernel.body) if isinstance(s, AllocBarriers)}
            device = SimulatedDriver()
            found.append((barriers, CudaGraph(plan, lambda device=device: device).bind({"w": b}).run({"x": a})["y"]))
    (own, fast), (both, slow) = found
    assert own == {"full"} and both == {"full", "empty"}
    assert np.array_equal(fast, slow)


@pytest.mark.slow
def test_matrices_move_with_the_arrays_of_a_run() -> None:
    """The TMA is told of an address at each launch: other arrays, and other rows, in runs that are graphs."""
    x, w = input("x", bf16["n", 64]), input("w", bf16[64, 64])
    device = SimulatedDriver()
    program = dovetail.compile(Graph.of({"y": ops.matmul(x, w)}), target=target_of(device), cache="off")
    rng = np.random.default_rng(0)
    given = [
        {name: rng.normal(size=shape).astype(bf16.numpy) for name, shape in (("x", (rows, 64)), ("w", (64, 64)))}
        for rows in (70, 70, 40)
    ]
    there = [program.to_device(feeds) for feeds in given]
    for feeds, arrays in [*zip(given, there, strict=True)] * 3:
        found = program.run(arrays, outputs="device")["y"].numpy().astype(np.float64)
        exact = feeds["x"].astype(np.float64) @ feeds["w"].astype(np.float64)
        assert np.linalg.norm(found - exact) < 4e-3 * np.linalg.norm(exact)
    assert all(kernel.maps for kernel in device.library.kernels.values()), "the TMA copies the factors"


def test_roles_that_wait_for_each_other_are_an_error() -> None:
    wait = (AwaitPhase("full", Extent(0), Extent(0)),)
    kernel = Kernel("stuck", (), (), "tile", (Roles(1, wait, wait),), launch=Launch(1, 64))
    machine = Machine(kernel, {}, {})
    machine.barriers["full"] = [PhaseBarrier(1)]
    with pytest.raises(AssertionError, match="deadlock"):
        machine.run()


def test_a_box_has_zeros_outside_and_its_chunks_permuted() -> None:
    matrix = np.arange(3 * 72, dtype=np.uint16)
    found = boxed(matrix.view(np.uint8), 0, (72, 3), (144,), (64, 1), 4).view(np.uint16).reshape(4, 8, 8)
    for line in range(4):
        for chunk in range(8):
            for element in range(8):
                inside = line + 1 < 3 and 8 * chunk + element + 64 < 72
                want = matrix[(line + 1) * 72 + 64 + 8 * chunk + element] if inside else 0
                assert found[line, chunk ^ (line % 8), element] == want


def test_epilogues_of_16_bit_floats_are_rounded_once() -> None:
    """In f32 on the way; a float that the graph casts to a wider one keeps its rounding."""
    x, w, b = x_of(bf16, 128, 128), x_of(bf16, 128, 128, name="w"), x_of(bf16, 128, name="b")
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": library.linear(x, w, b, act="gelu")}), target="cuda"))
    stores = [s for s in everything(made.kernel.body) if isinstance(s, Store) and s.tensor.dtype is bf16]
    (value,) = {s.value.op for s in stores if isinstance(s.value, Call)}
    assert value == "cast"
    inner = Call("mul", (Name("a", bf16), Call("cast", (Name("s", f32),), bf16)), bf16)
    kept = Call("cast", (inner,), f32)
    y = Tensor("y", bf16, (2,))
    wide = widened(Store(y, (ZERO,), inner)).value
    assert wide == Call("cast", (Call("mul", (Call("cast", (Name("a", bf16),), f32), Name("s", f32)), f32),), bf16)
    rounded = Call("cast", (Call("add", (kept, kept), f32),), bf16)
    assert widened(Store(y, (ZERO,), rounded)).value == rounded


def test_near_erf_is_erf_to_16_bits() -> None:
    x = np.linspace(-6, 6, 10001)
    at = np.clip(x, -tables.NEAR_ERF_BOUND, tables.NEAR_ERF_BOUND)
    made = np.clip(np.polyval(tables.NEAR_ERF, at * at) * at, -1, 1)
    exact = np.array([erf(v) for v in x])
    assert np.abs(made - exact).max() < 3e-5
    assert made[0] == -1 and made[-1] == 1
    # Half of 1 + erf bounds the square alone: beyond it the polynomial goes on, and ends at 0 and 1.
    square = np.minimum(x * x, tables.NEAR_ERF_BOUND**2)
    half = np.clip(np.polyval(tables.NEAR_ERF, square) * x / 2 + 0.5, 0, 1)
    assert np.abs(half - (1 + exact) / 2).max() < 1.5e-5
    assert half[0] == 0 and half[-1] == 1


def test_gelu_has_one_function_for_its_half_and_its_erf() -> None:
    x, half, one = Name("x", f16), Number(0.5, f16), Number(1.0, f16)
    erf_of_x = Call("erf", (Call("div", (x, Number(2.0**0.5, f16)), f16),), f16)
    more = Call("add", (erf_of_x, one), f16)
    wide = Call("cast", (x,), f32)
    scale = Number(1 / Number(2.0**0.5, f16).rounded, f32)
    for made in (
        Call("mul", (Call("mul", (half, x), f16), more), f16),
        Call("mul", (x, Call("mul", (half, more), f16)), f16),
    ):
        stored = widened(Store(Tensor("y", f16, (2,)), (ZERO,), made)).value
        assert stored == Call("cast", (Call("mul", (wide, Call("near_half_erf", (wide, scale), f32)), f32),), f16)
    other = Call("mul", (x, more), f16)
    (found,) = (s for s in [widened(Store(Tensor("y", f16, (2,)), (ZERO,), other)).value] if isinstance(s, Call))
    assert found.operands[0] == Call(
        "mul",
        (wide, Call("add", (Call("near_erf", (Call("mul", (wide, scale), f32),), f32), Number(1.0, f32)), f32)),
        f32,
    )
