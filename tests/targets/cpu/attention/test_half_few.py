"""Few queries with keys and values of f16, which are read as they are: against float64, and where they are widened."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, Program, library, ops
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bool_, f16, f32
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.attention import Attention, attention_of
from dovetail.plan.alias import locate
from dovetail.settings import Precision
from dovetail.targets.cpu.attention.f16 import (
    few_half_scores_function,
    few_half_values_function,
    half_scores_function,
    half_values_function,
    narrow_function,
)
from dovetail.targets.cpu.attention.few import few_scores_function, few_values_function
from dovetail.targets.cpu.attention.functions import Shared
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import Attend
from dovetail.targets.cpu.isa import Host, host_device
from dovetail.targets.cpu.jit import compile_text
from tests.kernels.machines import code_for, loops

NEON = Host("aarch64-unknown-linux-gnu", "neoverse-n1", "+dotprod,+fullfp16", 128, 32)
_SUM = r"\tfml[as]\tv(\d+)\.8h"
HEADS, SHARED = 4, 2
KEYS, ROOM = symbol("n"), symbol("room")
needs_f16 = pytest.mark.skipif(
    not host_device().emits("f16_arithmetic") or host_device().lanes != 4, reason="this machine computes in no f16"
)
AVX512 = Host("x86_64-unknown-linux-gnu", "icelake-server", "+avx512vnni,+f16c,-prefer-256-bit", 512, 32)


def graph(d: int, dv: int, queries: int = 1, kept: Any = f16) -> Graph:
    """A cache of which the first rows are read, as a decoder does."""
    q, keep = input("q", f32[1, HEADS, queries, d]), input("keep", bool_[queries, KEYS])
    k, v = (input(name, kept[1, SHARED, ROOM, size]) for name, size in (("k", d), ("v", dv)))
    k, v = (ops.slice_(x, axis=-2, start=0, stop=KEYS) for x in (k, v))
    k, v = (x if kept is f32 else ops.cast(x, dtype=f32) for x in (k, v))
    return Graph.of({"y": library.attention(q, k, v, keep=keep, scale=d**-0.5, groups=HEADS // SHARED, fill=-np.inf)})


def feeds(d: int, dv: int, keys: int, queries: int = 1, kept: Any = np.float16) -> dict[str, Array]:
    rng = np.random.default_rng(keys)
    found = {"q": rng.normal(size=(1, HEADS, queries, d)).astype(np.float32)}
    found |= {
        name: rng.normal(size=(1, SHARED, keys + 5, size)).astype(np.float16).astype(kept)
        for name, size in (("k", d), ("v", dv))
    }
    return found | {"keep": np.arange(keys) % 7 != np.arange(queries)[:, None]}


def wanted(given: dict[str, Array]) -> Array:
    q, k, v = (given[name].astype(np.float64) for name in "qkv")
    k, v = (np.repeat(x[:, :, : given["keep"].shape[-1]], HEADS // SHARED, axis=1) for x in (k, v))
    scores = np.where(given["keep"], q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def compiled(graph: Graph, precision: Precision = "exact") -> Program:
    return dovetail.compile(graph, threads=1, precision=precision, cache="off")


def error(program: Program, given: dict[str, Array]) -> float:
    truth = wanted(given)
    return float(np.abs(program.run(given)["y"] - truth).max() / np.abs(truth).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "dv", "queries", "keys"), [(128, 128, 1, 100), (64, 48, 3, 37), (16, 32, 1, 8), (128, 128, 1, 300)]
)
def test_keys_of_f16_are_read_as_they_are(d: int, dv: int, queries: int, keys: int) -> None:
    """One kernel, with the bits of one that is given the same numbers as f32."""
    program, given = compiled(graph(d, dv, queries)), feeds(d, dv, keys, queries)
    assert len(program.plan.steps) == 1
    assert error(program, given) < 1e-6
    wide = compiled(graph(d, dv, queries, f32)).run(feeds(d, dv, keys, queries, np.float32))["y"]
    assert program.run(given)["y"].tobytes() == wide.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(("d", "queries"), [(24, 1), (32, ATTENTION.few + 1)])
def test_others_are_widened_first(d: int, queries: int) -> None:
    """Rows of no whole vectors, and many queries, which would widen them again and again."""
    program = compiled(graph(d, 32, queries))
    assert len(program.plan.steps) > 1
    assert error(program, feeds(d, 32, 20, queries)) < 1e-6


@needs_f16
@pytest.mark.parametrize(("d", "dv", "keys"), [(128, 128, 512), (64, 64, 100), (32, 16, 15), (128, 128, 3)])
def test_fast_mode_multiplies_in_f16(d: int, dv: int, keys: int) -> None:
    """In groups of eight keys; those that are left are multiplied in f32."""
    off = error(compiled(graph(d, dv), "fast"), feeds(d, dv, keys))
    assert off < 2e-3 and (off > 1e-6 or keys < 8)


@needs_f16
def test_sums_of_large_values_do_not_overflow() -> None:
    given = feeds(32, 16, 512)
    given["q"] *= 0.0
    given["v"] = given["v"] + np.float16(60000.0)
    assert error(compiled(graph(32, 16), "fast"), given) < 2e-3


def call(shared: Shared, *given: Array | int) -> None:
    function, signature = shared
    code = compile_text(function.text)
    words = [x if isinstance(x, int) else x.ctypes.data for x in given]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(words))(code.address(signature.name))(*words)


@needs_f16
def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    rng, d, device = np.random.default_rng(0), 64, host_device()
    q, k = (rng.normal(size=(rows, d)).astype(np.float16) for rows in (2, 8))
    p = rng.random((2, ATTENTION.few_keys), dtype=np.float32)
    scores, sums = [np.zeros((rows, ATTENTION.few_keys), np.float32) for rows in (1, 2)], list[Array]()
    for rows, s in zip((1, 2), scores, strict=True):
        call(few_half_scores_function(device, d, rows, prefetches=True), q, k, 2 * d, s)
        o = np.zeros((rows, d), np.float32)
        old = np.ones(rows, np.float32)
        call(few_half_values_function(device, d, rows, prefetches=True), p, k, 2 * d, 8, o, old)
        sums.append(o[0])
    assert np.abs(scores[1][:, :8] - q.astype(np.float64) @ k.astype(np.float64).T).max() < 0.05
    assert scores[0][0, :8].tobytes() == scores[1][0, :8].tobytes()
    assert np.abs(sums[0] - p[0, :8] @ k.astype(np.float64)).max() < 0.02
    assert sums[0].tobytes() == sums[1].tobytes()


def test_neighbours_add_to_different_sums() -> None:
    """Queues hold few instructions that wait for the one before: four sums of two rows take turns."""
    shared = few_half_values_function(NEON.device, 128, 2, prefetches=True)
    code = code_for(NEON, shared[0].text, optimize=False)
    hottest = max(loops(code), key=lambda body: len(re.findall(_SUM, body)))
    found = re.findall(_SUM, hottest)
    assert len(found) >= 28
    assert all(len({*found[i : i + 4]}) == 4 for i in range(0, 28, 4))


@pytest.mark.parametrize(
    "shared",
    [
        half_scores_function(NEON.device, 64),
        half_values_function(NEON.device),
        narrow_function(NEON.device, 64),
        few_half_scores_function(NEON.device, 64, 2, prefetches=True),
        few_half_values_function(NEON.device, 64, 2, prefetches=True),
    ],
    ids=lambda shared: shared[1].name.partition("_0")[0],
)
def test_functions_in_f16_are_valid_on_every_machine(shared: Shared) -> None:
    """LLVM verifies them where no machine that computes in f16 runs them."""
    assert re.search(r"\.8h|\.4h", code_for(NEON, shared[0].text, optimize=False))


def test_avx512_widens_as_it_loads() -> None:
    for shared in (
        few_scores_function(AVX512.device, 64, 1, "half", 16),
        few_values_function(AVX512.device, 64, 2, 128, "half"),
    ):
        code = code_for(AVX512, shared[0].text, optimize=False)
        assert "vcvtph2ps" in code and "call" not in code


def test_wide_vectors_have_short_blocks_of_few_queries() -> None:
    """All values of a block are prefetched at once: no more than a core has requests for."""
    value = graph(64, 64, kept=f32).outputs["y"]
    found = attention_of(value, library.attention.arguments(value.operands, value.attrs), lambda v: locate(v, {}))
    assert isinstance(found, Attention)
    assert Attend.on(AVX512.device, found).few_block == AVX512.device.lanes
    assert Attend.on(CpuDevice(128, 32, ("fma_by_lane",)), found).few_block == ATTENTION.block
