"""Products of two activations: every layout of both operands, edges, long sums and epilogues, against float64."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dovetail import Graph, Value, library, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import symbol
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Job, Template
from dovetail.targets.cpu import backend, jit
from dovetail.targets.cpu.gemm.f32.pair_kernel import rows_function
from dovetail.targets.cpu.gemm.policy import tiles_of
from dovetail.targets.cpu.gemm.tile import Tile
from dovetail.targets.cpu.isa import host
from tests.codegen.crossed import HOSTS
from tests.covering import covering
from tests.kernels.native import check, native_of

LAYOUTS = ("nn", "tn", "nt", "tt")
"""Whether the left and the right operand are stored transposed."""
SHAPES = [
    ((), 1, 5, 40), ((), 9, 1, 7), ((), 17, 33, 12), ((), 33, 200, 40), ((), 200, 193, 100), ((), 70, 1000, 24),
    # Several groups of panels, packed or read where they are, with sums of two blocks along k.
    ((), 60, 530, 400), ((), 12, 530, 400),
    ((3,), 32, 128, 32), ((2, 3), 13, 30, 9),
]  # fmt: skip
DEVICES = [(256, 16), (512, 32)]


def swapped(x: Value) -> Value:
    return ops.permute(x, order=(-1, -2))


def operands(layout: str, *batch: int, m: int, k: int, n: int) -> tuple[Value, Value, dict[str, Array]]:
    """Both factors as they are multiplied, and arrays for them."""
    x_shape = (*batch, k, m) if layout[0] == "t" else (*batch, m, k)
    y_shape = (*batch, n, k) if layout[1] == "t" else (*batch, k, n)
    x, y = input("x", f32[x_shape]), input("y", f32[y_shape])
    rng = np.random.default_rng(m + k + n)
    feeds = {"x": rng.normal(size=x_shape), "y": rng.normal(size=y_shape) * max(1, k) ** -0.5}
    found = {name: a.astype(np.float32) for name, a in feeds.items()}
    return swapped(x) if layout[0] == "t" else x, swapped(y) if layout[1] == "t" else y, found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("batch", "m", "k", "n"), SHAPES)
def test_every_layout(layout: str, batch: tuple[int, ...], m: int, k: int, n: int) -> None:
    x, y, feeds = operands(layout, *batch, m=m, k=k, n=n)
    # A few rows by a matrix that is stored by rows, and a few columns, have kernels of their own: see test_vectors.py.
    kernel = "gemm_pair" if m > 4 and (n > 8 or k < 64) else ""
    check(x @ y, feeds, kernel=kernel)
    row = input("b", f32[n])
    biased = {**feeds, "b": np.linspace(-1, 1, n, dtype=np.float32)}
    check(library.linear(x, y, row, act="gelu"), biased, kernel=kernel)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sizes_that_are_known_late(layout: str) -> None:
    m, k, n = map(symbol, "mkn")
    x = swapped(input("x", f32[k, m])) if layout[0] == "t" else input("x", f32[m, k])
    y = swapped(input("y", f32[n, k])) if layout[1] == "t" else input("y", f32[k, n])
    sizes = [(1, 1, 1), (7, 3, 15), (100, 200, 13), (130, 17, 120), (0, 3, 2), (2, 0, 2), (20, 400, 30)]
    check(x @ y, *(operands(layout, m=a, k=b, n=c)[2] for a, b, c in sizes), kernel="gemm_pair")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_threads_change_no_bit(layout: str) -> None:
    x, y, feeds = operands(layout, m=150, k=500, n=90)
    for z in (x @ y, library.linear(x, y, act="tanh")):
        one, two = (native_of(z, threads).bind({}).run(feeds) for threads in (1, 2))
        for a, b in zip(one.values(), two.values(), strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("deep", [100, 1030])
def test_sums_are_those_of_packed_weights(layout: str, deep: int) -> None:
    """A parameter that becomes an input changes no bit, and neither does the layout of an operand."""
    x, y, feeds = operands(layout, m=40, k=deep, n=30)
    (found,) = native_of(x @ y).bind({}).run(feeds).values()
    given = {"x": np.ascontiguousarray(feeds["x"].T if layout[0] == "t" else feeds["x"])}
    weights = {"w": np.ascontiguousarray(feeds["y"].T if layout[1] == "t" else feeds["y"])}
    packed = native_of(input("x", f32[40, deep]) @ param("w", f32[deep, 30])).bind(weights)
    (expected,) = packed.run(given).values()
    assert np.array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "device", "size"), covering(LAYOUTS, DEVICES, [(5, 7, 9), (40, 530, 64), (30, 70, 100)])
)
def test_other_vectors(
    layout: str, device: tuple[int, int], size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM splits vectors that are wider than those here; rows of A are read where they are."""
    bits, registers = device
    wide = replace(host(), vector_bits=bits, vector_registers=registers)
    monkeypatch.setattr(backend, "host_device", lambda: replace(wide.device, capabilities=()))
    m, k, n = size
    x, y, feeds = operands(layout, m=m, k=k, n=n)
    check(x @ y, feeds, kernel="gemm_pair")


@pytest.mark.slow
def test_products_of_any_layout_share_their_epilogue() -> None:
    """Drivers differ in how they pack; what becomes of sums is compiled once, and optimised apart from them."""
    made: list[Template] = []
    for layout in LAYOUTS:
        x, y, _ = operands(layout, m=40, k=50, n=60)
        (job,) = [j for part in native_of(library.linear(x, y, act="gelu")).sections for j in part.jobs]
        assert isinstance(job, Job) and isinstance(job.kernel, Template)
        made.append(job.kernel)
    epilogues = [{part for part in kernel.shared if part.optimize} for kernel in made]
    assert len({kernel.name for kernel in made}) > 1
    assert epilogues[0] and all(found == epilogues[0] for found in epilogues)
    assert all(kernel.is_final for kernel in made)


def test_many_results_from_few_rows_are_shared_among_threads() -> None:
    """The gradient of a weight: a long sum, and no more rows and columns than one cell would take."""
    x, y, _ = operands("tn", m=96, k=4096, n=96)
    (job,) = [j for part in native_of(Graph.of(x @ y)).sections for j in part.jobs]
    assert isinstance(job, Job) and job.tiled.tiles != 1


@pytest.mark.slow
@pytest.mark.parametrize("machine", HOSTS)
@pytest.mark.parametrize("by_rows", [False, True])
def test_few_accumulators_leave_registers_on_other_machines(machine: str, by_rows: bool) -> None:
    there = HOSTS[machine]
    device = CpuDevice(there.vector_bits, there.vector_registers)
    row = tiles_of(device)
    part, _ = rows_function(Tile(device, row.mr, row.vectors), by_rows=by_rows)
    text = jit.assembly(part.text, vectorize=False, optimize=False, here=there)
    inner = max(re.split(r"\n(?=\.LBB)", text), key=lambda block: block.count("vfmadd"))
    products = inner.count("vfmadd")
    assert products == 4 * row.mr * row.vectors
    assert inner.count("(%rsp)") <= products // 8
