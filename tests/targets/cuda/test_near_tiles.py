"""Products of many rows as parts of a resident kernel: weights before blocks wait, and norms of their own rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.ir.dtype import f16
from dovetail.ir.leaf import input, param
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    AllReduce,
    CopyAsync,
    GridBarrier,
    Kernel,
    Loop,
    MultiplyMatrices,
    Statement,
    Store,
    SubGrid,
    When,
    reads,
)
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import kernels_of, steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.gpu.persistent.runs import PersistentRuns
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.simulated import SimulatedDriver, target_of

ROWS, WIDTH = 33, 64
FEW = replace(H200, multiprocessors=6, cluster=8, bulk_copies=True, cooperative="on")


def _layers(count: int = 5, rows: int = ROWS, *, by_k: bool = False) -> Graph:
    """Pre-norm layers of two products; rows are no multiple of those of a tile."""
    x = input("x", f16[rows, WIDTH])
    y = library.layer_norm(x, param("gain", f16[WIDTH]), param("shift", f16[WIDTH]), eps=1e-5)
    for layer in range(count):
        gain, shift, b = (param(f"{name}{layer}", f16[WIDTH]) for name in ("gain", "shift", "b"))
        inner = library.linear(y, param(f"up{layer}", f16[WIDTH, 128]), param(f"c{layer}", f16[128]), act="gelu")
        w = param(f"down{layer}", f16[WIDTH, 128] if by_k else f16[128, WIDTH])
        down = library.linear(inner, ops.permute(w, order=(-1, -2)) if by_k else w, b)
        y, x = library.residual_layer_norm(x, down, gain, shift, eps=1e-5, keep_sum=True)
    return Graph.of({"y": y, "x": x})


def _driver(description: GpuDevice) -> SimulatedDriver:
    found = SimulatedDriver()
    found.description = description
    return found


def _kernel(graph: Graph, device: GpuDevice = FEW) -> Kernel:
    """The only resident kernel of a graph."""
    every = steps_of(dovetail.compile(graph, target=target_of(_driver(device))).plan, device=device)
    (found,) = [made.kernel for _, kernels in every for made in kernels or () if made.kernel.counter]
    return found


def _parts(kernel: Kernel) -> list[SubGrid]:
    """The parts of all passes but the last one alone has."""
    found = [s.body[0] if isinstance(s, When) and len(s.body) == 1 else s for s in kernel.body]
    return [s for s in found if isinstance(s, SubGrid)]


def _has(part: SubGrid, kind: type[Statement]) -> bool:
    return any([isinstance(s, kind) for s in everything(part.body)])


@pytest.fixture
def _barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks send nothing, as where rows are many, and wait at barriers of the grid."""
    monkeypatch.setattr("dovetail.targets.gpu.persistent.exchange.SIZES", ())


@pytest.mark.usefixtures("_barriers")
@pytest.mark.parametrize("by_k", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["columns", "k"])
def test_results_are_those_of_the_graph(by_k: bool) -> None:
    """With weights whose neighbours in memory are columns, or elements of k."""
    graph, rng = _layers(by_k=by_k), np.random.default_rng(0)
    shapes = {str(v.attrs["name"]): tuple([int(str(n)) for n in v.shape]) for v in graph.parameters}
    given = {n: rng.standard_normal(s).astype(np.float16) * np.float16(0.1) for n, s in shapes.items()}
    feeds = {"x": rng.standard_normal((ROWS, WIDTH)).astype(np.float16)}
    device = _driver(FEW)
    program = dovetail.compile(graph, target=target_of(device)).bind(given)
    wanted = evaluate(graph, feeds, params=given, lift=True)
    found = program.run(feeds)
    for name, exact in wanted.items():
        assert np.linalg.norm(found[name].astype(np.float64) - exact) <= 2e-3 * np.linalg.norm(exact)
    assert device.log.count("launch resident") == 1


@pytest.mark.usefixtures("_barriers")
def test_norms_are_no_levels_of_their_own() -> None:
    kernel = _kernel(_layers())
    parts = _parts(kernel)
    assert len(parts) == 2 and all([_has(part, MultiplyMatrices) for part in parts])
    assert [_has(part, AllReduce) for part in parts].count(True) == 1
    assert len([s for s in kernel.body if isinstance(s, GridBarrier)]) == 2


@pytest.mark.usefixtures("_barriers")
def test_weights_and_constants_come_while_blocks_wait() -> None:
    """A part after a barrier copies nothing: it reads rows, and all else is in shared memory."""
    kernel = _kernel(_layers())
    assert not any([_has(part, CopyAsync) for part in _parts(kernel)])
    constants = {*kernel.constants}
    for part in _parts(kernel):
        assert part.blocks <= FEW.multiprocessors
        assert not constants & {tensor.pointer for tensor, _ in reads(part.body)}
    copied = [s for b in kernel.body if isinstance(b, GridBarrier) for s in everything(b.meanwhile)]
    assert len({s.source.pointer.removeprefix("next.") for s in copied if isinstance(s, CopyAsync)}) == 6


@pytest.mark.usefixtures("_barriers")
def test_rows_that_a_block_would_overwrite_are_normed_in_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_disturbed(_: PersistentRuns, made: GpuKernel) -> bool:
        return bool(made.reread)

    monkeypatch.setattr(PersistentRuns, "_is_disturbed", is_disturbed)
    parts = _parts(_kernel(_layers()))
    assert [_has(part, MultiplyMatrices) for part in parts].count(False) == 1


@pytest.mark.usefixtures("_barriers")
def test_layers_that_differ_by_their_norms_keep_them_apart() -> None:
    """Of four layers three would be equal with norms in products, of which the last ends early."""
    parts = _parts(_kernel(_layers(4)))
    assert len(parts) >= 3 and any([not _has(part, MultiplyMatrices) for part in parts])


@pytest.mark.usefixtures("_barriers")
def test_blocks_take_turns_where_tiles_are_many() -> None:
    """Weights that come early are those of one tile."""
    kernel = _kernel(_layers(rows=129), replace(FEW, multiprocessors=2))
    assert all([_has(part, CopyAsync) for part in _parts(kernel) if _has(part, MultiplyMatrices)])


def test_a_row_is_stored_in_groups_and_not_loaded_again() -> None:
    """In a launch too: loads of a row are vectors, which no store is between."""
    x, h, gain = input("x", f16[ROWS, 192]), input("h", f16[ROWS, 192]), param("gain", f16[192])
    y, total = library.residual_layer_norm(x, h, gain, eps=1e-5, keep_sum=True)
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": y, "x": total}), target=CLAIMS))
    kernel = made.kernel
    assert not {tensor.pointer for tensor, _ in reads(kernel.body)} & {*kernel.written}
    groups = [s for s in everything(kernel.body) if isinstance(s, Loop) and s.kind == "unrolled"]
    stores = [s for loop in groups for s in loop.body if isinstance(s, Store) and s.tensor.space == "global"]
    assert {s.tensor.pointer for s in stores} == {*kernel.written}
    for loop in groups:
        outside = [s for s in loop.body if isinstance(s, Store) and s.tensor.space == "global"]
        assert not outside or not any([tensor.space == "global" for tensor, _ in reads(loop.body)])
