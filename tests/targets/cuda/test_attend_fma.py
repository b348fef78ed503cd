"""Attention of f32 by multiply-adds: against NumPy in float64, whatever hides keys and however blocks share them."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail import Graph, library
from dovetail.dtypes import f16, f32
from dovetail.ir.dtype import bool_
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.attention import choice as attend_choice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import CopyAsync, Kernel
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import kernels_of, steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.attended import HIDDEN, attention, by_hand
from tests.targets.cuda.cards import card
from tests.targets.cuda.graphs import Case, x_of
from tests.targets.cuda.judged import feeds_of, in_lockstep
from tests.targets.cuda.simulated import target_of
from tests.tolerances import assert_close

SMALL = replace(H200, multiprocessors=1)
"""One block fills it: queries are not spread over blocks, and no blocks share keys."""


def _attention(queries: int | str, keys: int | str, d: int = 32, dv: int = 32, **call: Any) -> Value:
    return attention(queries, keys, d, dv, dtype=f32, **call)


def _made(value: Value, device: GpuDevice = SMALL) -> list[GpuKernel]:
    return [made for _, made in kernels_of(make_plan(Graph.of({"y": value}), target="cuda"), device=device)]


def _kernel(value: Value, device: GpuDevice = SMALL) -> Kernel:
    return _made(value, device)[0].kernel


def _judge(value: Value, device: GpuDevice = SMALL, sizes: dict[str, int] | None = None, **told: Any) -> None:
    feeds = feeds_of(Graph.of({"y": value}), sizes or {})
    assert_close(in_lockstep(Case({"y": value}), feeds, device=device)["y"], by_hand(feeds, **told), f32)


@pytest.mark.slow
@pytest.mark.parametrize("name", HIDDEN)
def test_whatever_hides_keys(name: str) -> None:
    call, queries, keys = dict(HIDDEN[name]), 40, 150
    for mask, dtype in (("keep", bool_), ("mask", f32)):
        if call.get(mask):
            call[mask] = x_of(dtype, queries, keys, name=mask)
    value = _attention(queries, keys, **call)
    assert _kernel(value).name == "attend_fma"
    _judge(value, **{n: call[n] for n in ("fill", "causal", "window", "softcap") if n in call})


@pytest.mark.slow
@pytest.mark.parametrize("warps", [1, 2, 4, 8])
@pytest.mark.parametrize(("queries", "keys"), [(16, 64), (130, 70), (5, 1)])
def test_blocks_of_any_size(warps: int, queries: int, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attend_choice, "FMA_WARPS", (warps,))
    value = _attention(queries, keys, heads=2)
    launch = _kernel(value).launch
    assert launch is not None and (launch.block, launch.grid) == (32 * warps, 2 * -(-queries // (16 * warps)))
    _judge(value)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("d", "dv"), [(128, 64), (64, 128), (48, 80), (20, 36), (7, 5), (1, 1)])
def test_any_features(d: int, dv: int) -> None:
    """Those that no vector divides are copied one by one."""
    value = _attention(20, 70, d, dv, heads=4, groups=2)
    widths = {s.nbytes for s in everything(_kernel(value).body) if isinstance(s, CopyAsync)}
    assert widths == ({16} if d % 4 == dv % 4 == 0 else {4})
    _judge(value)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["plain", "keep", "softcap"])
@pytest.mark.parametrize(("queries", "keys"), [(3, 300), (33, 130)])
def test_blocks_share_keys_where_queries_are_few(name: str, queries: int, keys: int) -> None:
    call = dict(HIDDEN[name])
    if "keep" in call:
        call["keep"] = x_of(bool_, queries, keys, name="keep")
    value, device = _attention(queries, keys, heads=2, **call), replace(H200, multiprocessors=16)
    assert [made.kernel.name for made in _made(value, device)] == ["attend_parts", "attend_sum"]
    _judge(value, device, **{n: call[n] for n in ("fill", "softcap") if n in call})


@pytest.mark.slow
@pytest.mark.parametrize("keys", [0, 1, 64, 130])
def test_any_number_of_keys(keys: int) -> None:
    keep = x_of(bool_, 20, "t", name="keep")
    value = _attention(20, "t", keep=keep, fill=-math.inf, zero_unseen=True)
    _judge(value, sizes={"t": keys}, fill=-math.inf)


@pytest.mark.exhaustive
@pytest.mark.parametrize("queries", [1, 20])
def test_any_number_of_queries(queries: int) -> None:
    _judge(_attention("n", 70, causal=True, fill=-math.inf), sizes={"n": queries}, causal=True, fill=-math.inf)


@pytest.mark.slow
def test_large_scores_and_values_do_not_overflow() -> None:
    value = _attention(16, 70)
    feeds = feeds_of(Graph.of({"y": value}), {})
    feeds["q"] *= 1e4
    feeds["v"] *= 1e30
    assert_close(
        in_lockstep(Case({"y": value}), feeds, device=SMALL)["y"] / 1e30, by_hand(feeds) / 1e30, f32, scale=1e3
    )


def _of(*lead: int, queries: tuple[int, ...] = (), **call: Any) -> Value:
    """An attention with leading axes."""
    q = x_of(f32, *(queries or lead), 20, 16, name="q")
    return library.attention(q, *(x_of(f32, *lead, 30, n, name=name) for name, n in (("k", 16), ("v", 24))), **call)


AXES: dict[str, Value] = {
    "no_heads": _of(scale=0.3),
    "batch": _of(2, 3, scale=0.3),
    "shared_by_all": _of(1, 1, queries=(2, 4), scale=0.3, groups=4),
    "mask_of_keys": _of(2, 3, scale=0.3, mask=x_of(f32, 2, 1, 1, 30, name="mask")),
    "keep_by_batch": _of(
        2, 3, scale=0.3, keep=x_of(bool_, 2, 1, 20, 30, name="keep"), fill=-math.inf, zero_unseen=True
    ),
    "no_key_is_seen": _of(3, scale=0.3, keep=x_of(bool_, 20, 30, name="keep"), fill=-math.inf, empty="zero"),
    "negative_scale": _of(3, scale=-0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AXES)
def test_any_axes_and_masks(name: str) -> None:
    graph = Graph.of({"y": AXES[name]})
    assert _kernel(AXES[name]).name == "attend_fma"
    feeds = feeds_of(graph, {})
    if name == "no_key_is_seen":
        feeds["keep"][3] = False
    found = in_lockstep(Case({"y": AXES[name]}), feeds, device=SMALL)["y"]
    assert_close(found, evaluate(graph, feeds, lift=True)["y"], f32)


@pytest.mark.slow
def test_queries_and_keys_may_be_views() -> None:
    """As of one product for all three: rows are further apart than they are long, and heads between them."""
    both = x_of(f32, 20, 3, 2, 32, name="all")
    q, k, v = (dovetail.ops.permute(both[:, n], order=(-2, -3, -1)) for n in range(3))
    value = library.attention(q, k, v, scale=0.2)
    feeds = feeds_of(Graph.of({"y": value}), {})
    parts = {name: feeds["all"][:, n].swapaxes(0, 1) for n, name in enumerate("qkv")}
    assert_close(in_lockstep(Case({"y": value}), feeds, device=SMALL)["y"], by_hand(parts), f32)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("d", "rows", "heads"), [(32, 128, 384), (64, 512, 64), (64, 197, 12), (128, 512, 16)])
def test_threads_keep_everything_in_registers(d: int, rows: int, heads: int, tmp_path: Path) -> None:
    """What multiply-adds wait for is read from shared memory in vectors, not word by word."""
    made, *_ = _made(_attention(rows, rows, d, d, heads=heads), card("h200").description)
    assert not re.search(r"ld\.shared\.[bf]32", to_ptx(made.text, "sm_90a"))
    assert not spilled_bytes(assembled(made, "sm_90a", tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "is_fused"),
    [
        (_attention(20, 70), True),
        (_attention("n", "t", causal=True, fill=-math.inf), True),
        (_attention(20, 70, 160, 160), False),
        (_attention(1, 70, causal=True, fill=-math.inf), False),
        (attention(20, 70, dtype=f16), True),
    ],
    ids=["few", "symbols", "wide", "one_query", "f16"],
)
def test_programs_keep_attentions_that_have_a_kernel(value: Value, is_fused: bool) -> None:
    device = card("h200")
    plan = dovetail.compile(Graph.of({"y": value}), target=target_of(device), cache="off").plan
    steps = steps_of(plan, device=device.description)
    assert any([step.value.op is library.attention for step, _ in steps]) == is_fused
    assert not any([kernels == () for _, kernels in steps]), "what a claim keeps has a kernel"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "d", "heads", "call", "taken"),
    [
        ((128, 128), 32, 384, {}, (4, 1)),
        ((128, 128), 64, 96, {}, (2, 1)),
        ((128, 128), 64, 12, {}, (4, 2)),
        ((197, 197), 64, 12, {}, (8, 4)),
        ((512, 512), 128, 16, {"groups": 2, "causal": True, "fill": -math.inf}, (4, 1)),
        ((1500, 1500), 64, 6, {}, (8, 3)),
        ((4, 4096), 128, 16, {"groups": 2}, (2, 16)),
        ((1024, 1024), 64, 32, {}, (8, 1)),
    ],
)
def test_estimates_take_what_was_measured_to_be_fastest(
    rows: tuple[int, int], d: int, heads: int, call: dict[str, Any], taken: tuple[int, int]
) -> None:
    """Warps of a block and parts of the keys, within 5 % of the fastest of both on an H200 (design 0018)."""
    kernel = _kernel(_attention(*rows, d, d, heads=heads, **call), card("h200").description)
    warps, parts = taken
    assert kernel.launch is not None
    blocks = heads * -(-rows[0] // (16 * warps)) * parts
    assert (kernel.launch.block, kernel.launch.grid) == (32 * warps, blocks)


def test_multiprocessors_have_equal_shares_of_blocks() -> None:
    """24 blocks that start early would fill eight multiprocessors of 132."""
    value = _attention(128, 128, 64, 64, heads=12)
    launch = _kernel(value, replace(card("h200").description, dependent_intensity=inf)).launch
    assert launch is not None and launch.shared_bytes > (H200.shared_bytes + 1024) // 2 - 1024
