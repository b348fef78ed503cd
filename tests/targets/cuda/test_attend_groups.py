"""Attention by warpgroups: against NumPy in float64, whatever hides keys, and without copies that nothing reads."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import Graph
from dovetail.ir.dtype import bf16, bool_, f16
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Alloc, CopyAsync, Kernel, Loop, MultiplyShared, When, reads
from dovetail.kernels.matrix_instruction import MMA
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import kernels_of
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.attended import HIDDEN, attention, by_hand
from tests.targets.cuda.graphs import Case, x_of
from tests.targets.cuda.judged import feeds_of, in_lockstep
from tests.targets.cuda.timed import set_timings
from tests.tolerances import assert_close

SMALL = replace(H200, multiprocessors=1)
"""One block fills it: queries go 64 to a block, as those of a long prompt do on a whole device."""


@pytest.fixture(params=[1, 2], ids=["one_group", "two_groups"])
def groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Warpgroups that share the keys of a block, whatever the estimates are."""
    set_timings(monkeypatch, "attention", shared_keys=1e9 if request.param == 1 else -1e9)
    return request.param


def _kernel(value: Value, device: GpuDevice) -> Kernel:
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": value}), target="cuda"), device=device)
    return made.kernel


def _is_by_group(value: Value, device: GpuDevice, groups: int | None = None) -> bool:
    kernel = _kernel(value, device)
    assert groups is None or (kernel.launch is not None and kernel.launch.block == 128 * groups)
    return any(isinstance(s, MultiplyShared) for s in everything(kernel.body))


@pytest.mark.slow
@pytest.mark.parametrize("name", HIDDEN)
def test_whatever_hides_keys(name: str, groups: int) -> None:
    call, queries, keys = dict(HIDDEN[name]), 80, 150
    for mask, dtype in (("keep", bool_), ("mask", f16)):
        if call.get(mask):
            call[mask] = x_of(dtype, queries, keys, name=mask)
    value = attention(queries, keys, **call)
    assert _is_by_group(value, SMALL, groups)
    feeds = feeds_of(Graph.of({"y": value}), {})
    told = {n: call[n] for n in ("fill", "causal", "window", "softcap") if n in call}
    assert_close(in_lockstep(Case({"y": value}), feeds, device=SMALL)["y"], by_hand(feeds, **told), f16)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [40, 64, 100, 128, 150])
@pytest.mark.parametrize("hides", [False, True], ids=["alone", "and_keep"])
def test_masks_of_keys_are_loaded_once_for_all_queries(keys: int, hides: bool, groups: int) -> None:
    """Padding, which is the same for all queries: keys of one round, of two, and of more than tiles hold at once."""
    call: dict[str, Any] = {"mask": x_of(f16, 1, keys, name="mask")}
    if hides:
        call |= {"keep": x_of(bool_, 70, keys, name="keep"), "fill": -math.inf, "zero_unseen": True}
    value = attention(70, keys, **call)
    by_group = _is_by_group(value, SMALL, groups if keys % 16 == 0 or not hides else None)
    feeds = feeds_of(Graph.of({"y": value}), {})
    feeds["mask"][0, ::3] = -65504
    expected = by_hand(feeds, fill=-math.inf if hides else 0.0)
    assert_close(in_lockstep(Case({"y": value}), feeds, device=SMALL)["y"], expected, f16)
    if by_group and groups == 1:
        loads = [at for tensor, at in reads(_kernel(value, SMALL).body) if tensor.pointer == "mask"]
        assert len(loads) == min(2, -(-keys // 64)) or hides, "one for the first round, and one for the next"


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "keys"), [(128, 128), (70, 64), (128, 100)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_block_goes_through_all_queries_of_many_heads(queries: int, keys: int, masked: bool) -> None:
    """Two blocks of 64 queries, one after the other, with the same keys: six heads have six blocks, not twelve."""
    call: dict[str, Any] = {"mask": x_of(f16, 1, keys, name="mask")} if masked else {}
    value = attention(queries, keys, heads=6, **call)
    kernel = _kernel(value, SMALL)
    assert kernel.launch is not None and kernel.launch.grid == 6 and kernel.launch.block == 128
    feeds = feeds_of(Graph.of({"y": value}), {})
    assert_close(in_lockstep(Case({"y": value}), feeds, device=SMALL)["y"], by_hand(feeds), f16)


def test_one_warpgroup_writes_16_bytes_a_thread(groups: int) -> None:
    """Two write halves of columns where they are."""
    kernel = _kernel(attention(80, 150), SMALL)
    assert any([isinstance(s, Alloc) and s.pointer == "staged" for s in everything(kernel.body)]) == (groups == 1)


def test_the_last_of_few_rounds_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 128 keys, scores are multiplied twice and not a third time, and no loop copies keys beyond the last."""
    set_timings(monkeypatch, "attention", warp_block=1e9, shared_keys=1e9)
    for keys, loops, products in ((64, 0, 2), (128, 0, 4), (192, 1, 3)):
        kernel = _kernel(attention(64, keys), SMALL)
        every = [*everything(kernel.body)]
        assert len([s for s in every if isinstance(s, Loop) and s.variable == "round"]) == loops
        assert len([s for s in every if isinstance(s, MultiplyShared)]) == products


@pytest.mark.slow
@pytest.mark.parametrize(("d", "dv"), [(128, 64), (64, 128)])
def test_features_fill_lines(d: int, dv: int) -> None:
    value = attention(70, 100, d, dv, dtype=bf16, heads=2, groups=2)
    assert _is_by_group(value, SMALL)
    feeds = feeds_of(Graph.of({"y": value}), {})
    assert_close(in_lockstep(Case({"y": value}), feeds, device=SMALL)["y"], by_hand(feeds), bf16)


@pytest.mark.parametrize(
    ("value", "device"),
    [
        (attention(80, 80, 96, 96), SMALL),
        (attention(80, 80, 192, 192), SMALL),
        (attention(16, 80), SMALL),
        (attention(72, "t", keep=x_of(bool_, 72, "t", name="keep"), fill=-math.inf), SMALL),
        (attention(80, 80), replace(SMALL, matrix_instructions=MMA)),
    ],
    ids=["lines", "registers", "few_queries", "loads_of_masks", "no_warpgroups"],
)
def test_other_attentions_multiply_by_warps(value: Value, device: GpuDevice) -> None:
    assert not _is_by_group(value, device)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "keep", "causal"])
def test_lone_blocks_go_through_one_round_of_keys_with_twice_the_warps(name: str) -> None:
    """As the few heads of a ViT: 16 queries to a block, and 32 keys to a warp."""
    call = dict(HIDDEN[name])
    if "keep" in call:
        call["keep"] = x_of(bool_, 20, 100, name="keep")
    value, device = attention(20, 100, 32, 32, **call), replace(H200, multiprocessors=8)
    launch = _kernel(value, device).launch
    assert launch is not None and launch.grid == 2 and launch.block == 4 * 32
    feeds = feeds_of(Graph.of({"y": value}), {})
    told = {n: call[n] for n in ("fill", "causal") if n in call}
    assert_close(in_lockstep(Case({"y": value}), feeds, device=device)["y"], by_hand(feeds, **told), f16)


@pytest.mark.parametrize("keys", [6, 40])
@pytest.mark.parametrize("name", HIDDEN)
def test_whatever_hides_a_few_keys(name: str, keys: int) -> None:
    """Their tiles have room for these alone, which is less than the bits of a word."""
    call = dict(HIDDEN[name])
    for mask, dtype in (("keep", bool_), ("mask", f16)):
        if call.get(mask):
            call[mask] = x_of(dtype, 5, keys, name=mask)
    value = attention(5, keys, 32, 32, **call)
    assert not _is_by_group(value, H200)
    feeds = feeds_of(Graph.of({"y": value}), {})
    told = {n: call[n] for n in ("fill", "causal", "window", "softcap") if n in call}
    assert_close(in_lockstep(Case({"y": value}), feeds, device=H200)["y"], by_hand(feeds, **told), f16)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [0, 1, 130, 203])
def test_masks_of_any_number_of_keys(groups: int, keys: int) -> None:
    """Rows of 203 bools begin anywhere."""
    queries = 128 // groups
    keep = x_of(bool_, queries, "t", name="keep")
    value = attention(queries, "t", keep=keep, fill=-math.inf, zero_unseen=True)
    assert _is_by_group(value, SMALL, groups)
    feeds = feeds_of(Graph.of({"y": value}), {"t": keys})
    assert_close(in_lockstep(Case({"y": value}), feeds, device=SMALL)["y"], by_hand(feeds, fill=-math.inf), f16)


@pytest.mark.slow
def test_rounds_that_nothing_sees_are_neither_copied_nor_multiplied(groups: int) -> None:
    """Values of hidden rounds may be anything, between rounds that are seen and after the last one."""
    device, queries = SMALL, 128 // groups
    value = attention(queries, 640, keep=x_of(bool_, queries, 640, name="keep"), fill=-math.inf)
    assert _is_by_group(value, device, groups)
    kernel = _kernel(value, device)
    (rounds,) = [s for s in everything(kernel.body) if isinstance(s, Loop) and s.variable == "round"]
    assert any(isinstance(s, CopyAsync) for s in everything(rounds.body)), "the next round is copied in this one"
    outside = [s for s in rounds.body if not isinstance(s, When)]
    assert not any(isinstance(s, CopyAsync) for s in everything(outside))
    feeds = feeds_of(Graph.of({"y": value}), {})
    columns = np.arange(640)
    feeds["keep"] = np.tile((columns < 90) | ((columns >= 400) & (columns < 450)), (queries, 1))
    wanted = by_hand(feeds, fill=-math.inf)
    feeds["v"][:, 128:384], feeds["v"][:, 512:] = np.inf, np.nan
    assert_close(in_lockstep(Case({"y": value}), feeds, device=device)["y"], wanted, f16)


@pytest.mark.slow
def test_the_widest_features_fit_registers(groups: int, tmp_path: Path) -> None:
    """As those of a prompt: a mask, and heads of 128."""
    keep = x_of(bool_, 64, 256, name="keep")
    value = attention(64, 256, 128, 128, dtype=bf16, heads=2, keep=keep, fill=-math.inf)
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": value}), target="cuda"), device=SMALL)
    assert made.kernel.launch is not None and made.kernel.launch.block == 128 * groups
    told = assembled(made, "sm_90a", tmp_path)
    assert "wgmma.mma_async" in made.text and not spilled_bytes(told), told
    assert "serialized" not in told, "products overlap with what does not wait for them"
