"""LLVM compiles kernels with reversed accesses for AVX-512 and AVX2, also where it is built with assertions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dovetail import Builder, ops
from dovetail.ir.dtype import f32, i64
from dovetail.kernels.loops.ir import Call, Expr, Extent, Load, Loop, Name, Set, Store, Tensor
from dovetail.kernels.loops.reversal import width_of_reversed
from dovetail.runtime.compile import compilation
from dovetail.runtime.request import make_request
from dovetail.targets.cuda.runs.run import kernels_of
from tests.codegen import crossed

ROOT = Path(__file__).parents[2]
COLUMN, J = Name("i"), Name("j")
BACK, FORTH, ROWS = Tensor("x", f32, (-4,)), Tensor("x", f32, (4,)), Tensor("x", f32, (-400, 4))


@pytest.mark.exhaustive
@pytest.mark.parametrize("machine", crossed.HOSTS)
def test_reversed_accesses_compile_for_other_machines(machine: str) -> None:
    child = [sys.executable, "-m", "tests.codegen.crossed", machine]
    done = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, timeout=600)
    last = "".join(done.stdout.splitlines(keepends=True)[-1:])
    assert done.returncode == 0, f"{last}{done.stderr[-2000:]}"
    assert not done.stderr, done.stderr


def copied(source: Tensor, *at: Expr) -> tuple[Store]:
    return (Store(Tensor("y", f32, (4,)), (COLUMN,), Load(source, at)),)


def width(body: tuple[Store | Set | Loop, ...], count: int = 64, *, reassociate: bool = False) -> int:
    return width_of_reversed("i", Extent(count), body, reassociate=reassociate)


def test_which_loops_are_reversed() -> None:
    """A stride of minus one element times what the index grows by, however the index is written."""
    minus = Call("sub", (Extent(63), COLUMN), i64)
    assert width(copied(FORTH, COLUMN)) == width(copied(BACK, J)) == width(copied(ROWS, COLUMN, J)) == 0
    assert width(copied(BACK, COLUMN)) == width(copied(FORTH, minus)) == 16
    assert width(copied(FORTH, Call("mul", (COLUMN, Extent(-1)), i64))) == 16
    assert width(copied(BACK, minus)) == width(copied(FORTH, Call("mul", (COLUMN, Extent(-2)), i64))) == 0
    assert width((Set("at", minus), *copied(FORTH, Name("at")))) == 8
    assert width((Loop("j", Extent(3), copied(BACK, Call("add", (COLUMN, J), i64))),)) == 16
    assert width(copied(BACK, Call("rem", (COLUMN, Extent(64)), i64))) == 16


def test_what_a_reversed_loop_may_do_at_once() -> None:
    """Few iterations are left to a scalar loop, and a sum that has an order stays a scalar loop."""
    assert [width(copied(BACK, COLUMN), n) for n in (1, 2, 5, 12, 16, 20, 31, 32)] == [1, 2, 4, 4, 16, 16, 8, 16]
    total = Name("total", f32)
    summed = (Set("total", Call("add", (total, Load(BACK, (COLUMN,))), f32)),)
    assert width(summed) == 1
    assert width(summed, reassociate=True) == 16


@pytest.mark.slow
def test_a_long_chain_of_integers_is_no_recursion() -> None:
    index: Expr = COLUMN
    for _ in range(20_000):
        index = Call("add", (index, Extent(1)), i64)
    assert width(copied(BACK, index)) == 16


def test_kernels_for_a_gpu_have_no_widths() -> None:
    """A note that the printer for GPUs does not define is no text of LLVM."""
    builder = Builder("reversed")
    x = builder.input("x", f32[64, 31])
    builder.output("y", ops.cum_sum(ops.flip(x, axes=(-1,)), axis=-1))
    plan = compilation(builder.graph(), make_request(target="cuda")).plan
    texts = [made.text for _, made in kernels_of(plan)]
    assert texts
    assert not any("!note" in text or "vectorize" in text for text in texts)
