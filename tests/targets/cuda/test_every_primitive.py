"""Every primitive on the simulated device: it has a kernel or a line in the report with its cost, and never crashes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from dovetail import Graph, Value, compile, ops
from dovetail.errors import TypeRuleError
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bool_, f8e4m3fn, f32, f64, i32, i64, u8, u32
from dovetail.ir.leaf import constant, input
from dovetail.ir.literal import Array
from dovetail.ir.type import TupleType
from dovetail.ops.primitive import Primitive
from tests.targets.cuda.backend import SIMULATED
from tests.targets.cuda.judged import expected_of, feeds_of
from tests.tolerances import assert_close

X, W, M = input("x", f32[1, 2, 6, 6]), input("w", f32[2, 2, 3, 3]), input("m", f32[3, 4])
FLAGS, KEY = input("flags", bool_[3, 4]), input("key", u32[2])
AT = input("at", i64[2, 4])
SCALE, ZERO, BYTES = input("scale", f32[()]), input("zero", u8[()]), input("bytes", u8[3, 4])
D = input("d", f64[2, 3, 3])
REGIONS, BATCH = input("regions", f32[2, 4]), input("batch", i64[2])
ON_HOST = frozenset({"deform_conv", "det", "fourier", "roi_align", "roi_pool"}) | {
    *("cholesky", "eig", "eigh", "lu", "reflectors", "solve", "svd"),
    *("counting", "non_max_suppression", "nonzero", "unique"),
}
"""What has no kernel; a kernel that comes later shortens the list. The last four find their sizes in a run."""
CONTROL = frozenset({"if", "while", "scan", "dot", "refusal", "sized"})
"""What is rewritten before anything is planned, or cannot stand alone."""
COMPLEX = frozenset({"complex", "real", "imag"})
"""Of c64, which the target does not claim."""


def _others() -> dict[str, Value]:
    first = {
        "max_pool_indices": ops.max_pool_indices(X, window=2),
        "sort": ops.sort(M),
        "top_k": ops.top_k(M, k=2),
        "unique": ops.unique(M, count=symbol("n")),
        "lu": ops.lu(D),
        "reflectors": ops.reflectors(D),
        "svd": ops.svd(D),
        "eigh": ops.eigh(D),
        "eig": ops.eig(D),
    }
    one = {name: results[0] for name, results in first.items()}
    return one | {
        "matmul": ops.matmul(M, ops.permute(M, order=(-1, -2))),
        "grouped_matmul": ops.grouped_matmul(M, input("stack", f32[2, 4, 3]), input("ends", i64[2])),
        "grouped_outer": ops.grouped_outer(M, M, input("ends", i64[2])),
        "cast": ops.cast(M, dtype=f8e4m3fn),
        "cast_f8": ops.cast_f8(M, dtype=f8e4m3fn, saturate=False),
        "bitcast": ops.bitcast(M, source="f32", target="i32"),
        "reduce_any": ops.reduce_any(FLAGS, axes=(-1,)),
        "reduce_all": ops.reduce_all(FLAGS, axes=(-2,)),
        "split": ops.split(M, axis=-1, parts=2) + 1.0,
        "merge": ops.merge(ops.permute(M, order=(-1, -2)), axis=-1),
        "unsqueeze": ops.neg(ops.unsqueeze(M, axes=(-1,))),
        "squeeze": ops.neg(ops.squeeze(input("s", f32[3, 1]), axes=(-1,))),
        "permute": ops.exp(ops.permute(M, order=(-1, -2))),
        "slice": ops.exp(ops.slice_(M, axis=-1, start=1, stop=4, step=2)),
        "part": ops.exp(ops.part(M, axis=-1, index=1, parts=2)),
        "expand": ops.expand(input("s", f32[3, 1]), axis=-1, size=4) + M,
        "pad": ops.pad(M, constant(np.asarray(2, np.float32)), axis=-1, before=1, after=2),
        "concat": ops.concat(M, M, axis=-1),
        "again": ops.exp(ops.again(M)),
        "stop_gradient": ops.exp(ops.stop_gradient(M)),
        "flip": ops.concat(ops.flip(M, axes=(-1,)), M, axis=-2),
        "conv": ops.conv(X, W, padding=1),
        "conv_transpose": ops.conv_transpose(X, W, strides=2),
        "deform_conv": ops.deform_conv(X, W, input("o", f32[1, 18, 4, 4]), input("k", f32[1, 9, 4, 4])),
        "max_pool": ops.max_pool(X, window=2),
        "average_pool": ops.average_pool(X, window=2),
        "lp_pool": ops.lp_pool(X, window=2),
        "resize": ops.resize(X, axes=(-2, -1), sizes=(4, 9), mode="cubic"),
        "non_max_suppression": ops.non_max_suppression(
            input("boxes", f32[1, 4, 4]),
            input("scores", f32[1, 2, 4]),
            input("limit", i64[()]),
            SCALE,
            input("least", f32[()]),
            count=symbol("n"),
        ),
        "roi_align": ops.roi_align(X, REGIONS, BATCH, height=2, width=2),
        "roi_pool": ops.roi_pool(X, input("r", f32[2, 5]), height=2, width=2),
        "grid_sample": ops.grid_sample(X, input("grid", f32[1, 3, 3, 2])),
        "fourier": ops.fourier(input("f", f32[2, 8, 2])),
        "iota": ops.iota(size=9),
        "counting": ops.counting(input("n", i64[()]), count=symbol("n")),
        "extent": ops.extent(size=7),
        "random_bits": ops.random_bits(KEY, shape=(5,)),
        "gather": ops.gather(M, AT, axis=-2),
        "gather_elements": ops.gather_elements(M, AT, axis=-2),
        "gather_nd": ops.gather_nd(M, input("rows", i64[3, 1])),
        "scatter_elements": ops.scatter_elements(M, AT, input("u", f32[2, 4]), axis=-2),
        "scatter_nd": ops.scatter_nd(M, input("rows", i64[3, 1]), input("v", f32[3, 4])),
        "nonzero": ops.nonzero(M, count=symbol("n")),
        "det": ops.det(D),
        "solve": ops.solve(D, D),
        "cholesky": ops.cholesky(D @ ops.permute(D, order=(-1, -2)) + constant(np.eye(3) * 2.0)),
        "quantise": ops.quantise(M, SCALE, ZERO, dtype=u8),
        "dequantise": ops.dequantise(BYTES, SCALE, ZERO, dtype=f32),
    }


OTHERS = _others()


def sample(op: Primitive) -> Value:
    """A small graph with one primitive."""
    if op.name in OTHERS:
        return OTHERS[op.name]
    if op.elementwise:
        return _elementwise(op)
    return op(M, axes=(-1,)) if op.name.startswith("reduce_") else op(M, axis=-1)


def _elementwise(op: Primitive) -> Value:
    for dtype in (f32, i32, bool_):
        x, y = input("a", dtype[3, 4]), input("b", dtype[3, 4])
        try:
            return op(*(FLAGS, x, y) if op.name == "where" else (x, y)[: op.arity])
        except TypeRuleError:
            continue
    raise AssertionError(f"{op.name} takes none of the dtypes")


def given(graph: Graph) -> Mapping[str, Array]:
    """Ordinary numbers; indices and images of a batch within their axes, scales above 0."""
    feeds = dict(feeds_of(graph, {}))
    for name, array in feeds.items():
        if name in ("at", "rows", "batch"):
            feeds[name] = np.abs(array) % (1 if name == "batch" else 3)
        elif name == "r":
            feeds[name] = np.abs(array) * np.array([0, 1, 1, 3, 3], np.float32)
        elif name in ("n", "limit"):
            feeds[name] = np.abs(array)
        elif name in ("scale", "regions"):
            feeds[name] = np.abs(array) + np.float32(0.1)
    return feeds


EVERY = [op for op in ops.ALL if op.name not in CONTROL | COMPLEX]


@pytest.mark.slow
@pytest.mark.parametrize("op", EVERY, ids=[op.name for op in EVERY])
def test_it_runs_and_the_report_tells_what_the_host_does(op: Primitive) -> None:
    value = sample(op)
    assert not isinstance(value.type, TupleType)
    graph = Graph.of({"y": value})
    program = compile(graph, target=SIMULATED)
    feeds = given(graph)
    assert_close(program.run(feeds)["y"], expected_of(graph, feeds)["y"], value.dtype)
    hosted = [k for k in program.report.kernels if k.on_host]
    assert {k.op for k in hosted} <= ON_HOST
    assert all(k.seconds > 1e-5 for k in hosted)
    assert all(f"HOST       1 × {k.op}" in str(program.report) for k in hosted)


def test_every_sample_is_of_a_primitive() -> None:
    assert {op.name for op in ops.ALL} >= OTHERS.keys()
