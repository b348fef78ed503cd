"""What the claims of XLA promise: every primitive agrees with the reference on draws, and so do the draws of the laws.

`make primitives` runs all draws; here is one of each primitive and of each fused op.
"""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, compile, library, ops
from dovetail.errors import BindError
from dovetail.ir.dtype import DType, f32, f64, i8, u8, u64
from dovetail.ir.leaf import input
from dovetail.targets.xla.claims import CLAIMS, SIZED_BY_DATA
from tests.targets.xla.drawn import UNDRAWN, Draw, claimed, judged, of_laws, of_primitives

pytest.importorskip("jax")


def test_every_claimed_primitive_computes_what_the_reference_does() -> None:
    which = claimed()
    found = judged(of_primitives(which, most=1))
    assert found.wrong == () and found.draws == len(which)
    # A primitive that is claimed is drawn, refused by its condition or named with a reason.
    homes = [*(op.name for op in which), *SIZED_BY_DATA, *UNDRAWN]
    assert sorted(homes) == sorted(CLAIMS.native)
    assert found.primitives >= {op.name for op in which}


def test_what_the_laws_of_fused_ops_draw() -> None:
    found = judged(of_laws((op, op.variants[0]) for op in library.ALL))
    assert found.wrong == () and found.draws == len(library.ALL)


@pytest.mark.parametrize("dtype", [u8, u64, i8], ids=lambda d: d.name)
def test_narrow_and_unsigned_indices_are_in_range(dtype: DType) -> None:
    table, at = input("table", f32[200]), input("at", dtype[3])
    feeds = {"table": np.arange(200, dtype=np.float32), "at": np.array([0, 100, 127], dtype.numpy)}
    found = judged([Draw("gather", Graph.of({"y": ops.gather(table, at, axis=-1)}), feeds)])
    assert found.wrong == ()


def test_unsigned_indices_do_not_wrap() -> None:
    table, at = input("table", f32[4]), input("at", u64[1])
    program = compile(Graph.of({"y": ops.gather(table, at, axis=-1)}), target="xla")
    feeds = {"table": np.arange(4, dtype=np.float32), "at": np.array([2**64 - 1], np.uint64)}
    with pytest.raises(BindError, match="an axis of size 4"):
        program.run(feeds)


def test_the_smallest_of_the_widest_integers() -> None:
    x = input("x", u64[3])
    feeds = {"x": np.array([2**64 - 1, 2**63, 7], np.uint64)}
    found = judged([Draw("min", Graph.of({"y": ops.reduce_min(x, axes=(-1,))}), feeds)])
    assert found.wrong == ()


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (3, 5), (5, 3)])
def test_lu_without_pivots(rows: int, columns: int) -> None:
    x = input("x", f64[2, rows, columns])
    feeds = {"x": np.random.default_rng(0).standard_normal((2, rows, columns))}
    feeds["x"][1, 0, 0] = 0.0
    packed, places = ops.lu(x, pivot=False)
    found = judged([Draw("lu", Graph.of({"packed": packed, "places": places}), feeds)])
    assert found.wrong == ()
