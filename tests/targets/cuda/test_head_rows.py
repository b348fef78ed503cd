"""Heads of a product that it norms, rotates and appends to a cache itself: what comes out, and which steps it takes."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.errors import BindError
from dovetail.ir.dtype import bf16, i64
from dovetail.ir.leaf import input, param
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm import tile as tiles
from dovetail.kernels.gpu.gemm.tile import BlockTile
from dovetail.models.llama_cache import with_rows
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import CudaGraph, steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.gpu.stored import from_bytes, to_bytes
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.simulated import SimulatedDriver

DEVICE = replace(H200, cooperative="off", multiprocessors=4, cluster=8, dependent_intensity=inf)
HEAD = BlockTile(64, 128, 4, 1, 2, by_warpgroup=True)
WIDTH, TOKENS, HIDDEN, ROOM = 128, 40, 64, 48


def _heads(x: Value, first: int, count: int) -> Value:
    """Some heads of a product: heads, tokens, features."""
    some = ops.slice_(x, axis=-1, start=first * WIDTH, stop=(first + count) * WIDTH)
    return ops.permute(ops.split(some, axis=-1, size=WIDTH), order=(-4, -2, -3, -1))


def head_outputs(tokens: int = TOKENS, hidden: int = HIDDEN, room: int = ROOM, queries: int = 1) -> dict[str, Value]:
    """Queries, and caches of keys and values, of a token's row that a product and a norm made."""
    residual = input("residual", bf16[1, tokens, hidden])
    row = library.matmul_add(input("x", bf16[1, tokens, hidden]), param("first", bf16[hidden, hidden]), residual)
    normed = library.rms_norm(row, param("gain", bf16[hidden]), eps=1e-6)
    every = normed @ param("second", bf16[hidden, (2 + queries) * WIDTH])
    cos, sin = (input(name, bf16[tokens, WIDTH]) for name in ("cos", "sin"))
    k, v, q = _heads(every, 0, 1), _heads(every, 1, 1), _heads(every, 2, queries)
    k, q = (library.rms_norm(rows, param(f"{n}_gain", bf16[WIDTH]), eps=1e-6) for n, rows in (("k", k), ("q", q)))
    k, q = (library.rope(rows, cos, sin) for rows in (k, q))
    positions, cache = input("positions", i64[tokens]), bf16[1, 1, room, WIDTH]
    caches = {n: with_rows(input(f"{n}_cache", cache), rows, positions) for n, rows in (("k", k), ("v", v))}
    return {"row": row, "q": q} | caches


def graph_of_heads(outputs: dict[str, Value]) -> Graph:
    return Graph.of(outputs).donate({"k": "k_cache", "v": "v_cache"})


def _kernels(outputs: dict[str, Value], device: GpuDevice = DEVICE) -> list[GpuKernel]:
    plan = make_plan(graph_of_heads(outputs), target=CLAIMS)
    return [made for _, several in steps_of(plan, device=device) for made in several or ()]


def _run(outputs: dict[str, Value], positions: list[int]) -> None:
    graph, random = graph_of_heads(outputs), np.random.default_rng(3)
    feeds: dict[str, Any] = {}
    params: dict[str, Any] = {}
    for v in (*graph.inputs, *graph.parameters):
        shape = tuple(int(str(n)) for n in v.shape)
        size = shape[0] ** -0.5 if v in graph.parameters and len(shape) == 2 else 1.0
        (feeds if v in graph.inputs else params)[str(v.attrs["name"])] = (
            np.asarray(positions, np.int64) if v.dtype is i64 else (random.normal(size=shape) * size).astype(bf16.numpy)
        )
    simulated = SimulatedDriver()
    simulated.description = DEVICE
    found = CudaGraph(make_plan(graph, target=CLAIMS), lambda: simulated).bind(params).run(feeds)
    exact, rounded = (evaluate(graph, feeds, params=params, lift=lift) for lift in (True, False))
    for name, y in found.items():
        error, usual = (np.linalg.norm(np.asarray(z, np.float64) - exact[name]) for z in (y, rounded[name]))
        assert error <= 1.25 * usual, name


POSITIONS = {
    "in order": [*range(8, 8 + TOKENS)],
    "some twice": [(7 * n) % 20 for n in range(TOKENS)],
    "from the end": [-1 - n for n in range(TOKENS)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POSITIONS)
def test_a_product_norms_rotates_and_appends_its_heads(name: str) -> None:
    """Of tokens that go to the same row of a cache, the last one stays."""
    with patch.object(tiles, "PIPELINED_TILES", (HEAD,)):
        _run(head_outputs(), POSITIONS[name])


@pytest.mark.exhaustive
def test_a_row_beyond_the_cache_is_told() -> None:
    with patch.object(tiles, "PIPELINED_TILES", (HEAD,)), pytest.raises(BindError):
        _run(head_outputs(), [ROOM, *range(1, TOKENS)])


@pytest.mark.slow
def test_heads_that_something_else_reads_keep_their_launch() -> None:
    """So do heads that are not the columns of a tile."""
    outputs = head_outputs()
    (k,) = [v for v in outputs["k"].operands if v.op is library.rope]
    with patch.object(tiles, "PIPELINED_TILES", (HEAD,)):
        assert [made.kernel.name for made in _kernels(outputs)] == ["contract", "contract"]
        assert [made.kernel.name for made in _kernels(outputs | {"rows": k})] == ["contract", "contract", "row_stages"]
    with patch.object(tiles, "PIPELINED_TILES", (replace(HEAD, columns=64),)):
        assert [made.kernel.name for made in _kernels(outputs)] == ["contract", "contract", "row_stages"]


@pytest.mark.slow
def test_they_are_stored() -> None:
    plan = make_plan(graph_of_heads(head_outputs()), target=CLAIMS)
    with patch.object(tiles, "PIPELINED_TILES", (HEAD,)):
        steps = tuple([kernels for _, kernels in steps_of(plan, device=DEVICE)])
    content = to_bytes(plan, steps, {made.text: "code" for kernels in steps for made in kernels or ()})
    assert content is not None
    again, _ = from_bytes(plan, content)
    told = [
        [[(made.workspace, made.workspace_bytes, made.checks) for made in k or ()] for k in x] for x in (again, steps)
    ]
    assert told[0] == told[1] and told[0][-1][0][2]


@pytest.mark.exhaustive
def test_whole_sizes_have_registers_for_it(tmp_path: Path) -> None:
    """Those of a prompt of Qwen3-0.6B, but for fewer heads of keys."""
    _, made = _kernels(head_outputs(512, 1024, 4096, 30), replace(DEVICE, multiprocessors=132))
    assert made.launch.grid == 128 and spilled_bytes(assembled(made, "sm_90a", tmp_path)) == 0
