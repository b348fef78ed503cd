"""What the driver of a card describes is what its assembler takes: kernels of small programs, for every generation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import dovetail
from dovetail import Graph, library, ops, param
from dovetail.ir.dtype import bf16, bool_, f16, f32
from dovetail.ir.leaf import input
from dovetail.models.bert import BertShape, bert
from dovetail.models.decoder import cached_decoder
from dovetail.models.decoder_shape import DecoderShape, parameter_shapes
from dovetail.targets.cuda.driver.architectures import moves_registers
from dovetail.targets.cuda.runs.run import steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.cards import CARDS, card
from tests.targets.cuda.simulated import target_of
from tests.targets.cuda.test_decode import DECODE

QWEN = replace(DECODE.SHAPES["qwen3_0.6b"], layers=3, vocabulary=1024)
IN_BLOCKS = DecoderShape(
    layers=3, hidden=1024, heads=16, kv_heads=8, width=64, inner=3072, vocabulary=1024, context=2048
)


def _in_blocks(kind: str) -> Graph:
    sizes = parameter_shapes(IN_BLOCKS)
    return cached_decoder(IN_BLOCKS, {name: kind if len(size) == 2 else "f32" for name, size in sizes.items()})


def _attention(queries: int | str, keys: int | str, width: int, dtype: dovetail.dtypes.DType, heads: int = 16) -> Graph:
    q = input("q", dtype[1, heads, queries, width])
    k, v = (input(n, dtype[1, heads // 2, keys, width]) for n in "kv")
    keep = input("keep", bool_[queries, keys])
    value = library.attention(q, k, v, scale=width**-0.5, groups=2, keep=keep, fill=-math.inf)
    return Graph.of({"y": value})


def _image() -> Graph:
    x = input("x", f16[1, 64, 56, 56])
    w, b = param("w", f16[64, 64, 3, 3]), param("b", f16[64, 1, 1])
    deep = library.conv_bias_act(x, w, b, act="relu", padding=(1, 1, 1, 1))
    return Graph.of({"deep": deep, "by_channel": ops.conv(x, param("d", f16[64, 1, 3, 3]), groups=64)})


def _rows() -> Graph:
    x = input("x", f32[9, 5000])
    return Graph.of({"sorted": ops.sort(x)[0], "summed": ops.cum_sum(x, axis=-1), "best": ops.top_k(x, k=50)[1]})


PROGRAMS: Mapping[str, tuple[Callable[[], Graph], tuple[str, ...]]] = {
    "step": (lambda: DECODE.step_graph(QWEN), ("l4", "b200", "b300")),
    "step_q8_0": (lambda: _in_blocks("q8_0"), ("a100", "b200")),
    "step_q4_k": (lambda: _in_blocks("q4_k"), ("rtx5090",)),
    "prompt": (lambda: DECODE.step_graph(replace(QWEN, layers=1), 512), ("b200",)),
    "encoder_few_rows": (lambda: bert(BertShape(layers=1, dtype=f16), batch=1, seq=16), ("b200",)),
    "encoder_many_rows": (lambda: bert(BertShape(layers=1, dtype=f16), batch=32, seq=128), ("b200",)),
    "attention_short": (lambda: _attention(20, 300, 64, f16), ("a100", "b200")),
    "attention_wide": (lambda: _attention(512, "t", 128, bf16), ("l4", "b200", "rtx5090")),
    "encoder_f32": (lambda: bert(BertShape(layers=1, dtype=f32), batch=1, seq=128), ("a100",)),
    "attention_f32": (lambda: _attention(512, 512, 128, f32), ("l4", "b200")),
    "image": (_image, ("l4", "b200")),
    "rows": (_rows, ("a100", "b200")),
}
"""Programs, and the cards that they are assembled for: those with other kernels than the cards before have."""
SPILL = frozenset({("encoder_many_rows", "b200"), ("prompt", "b200")})
"""Whose products with many rows keep some words of a thread in local memory."""


@cache
def _kernels(program: str, name: str) -> list[GpuKernel]:
    device = card(name)
    plan = dovetail.compile(PROGRAMS[program][0](), target=target_of(device), cache="off").plan
    steps = steps_of(plan, device=device.description)
    return list({made.text: made for _, kernels in steps for made in kernels or ()}.values())


@pytest.mark.parametrize("name", CARDS)
def test_a_description_has_what_the_architecture_has(name: str) -> None:
    """Blocks of clusters and copies of many bytes are Hopper's and later; the rest needs code for one architecture."""
    found = card(name).description
    assert found.multiprocessors == CARDS[name][2] and found.shared_bytes == CARDS[name][3]
    is_late = CARDS[name][0] >= 9
    assert (found.cluster > 0, found.bulk_copies, found.dependent_intensity > 0) == (is_late,) * 3
    assert found.copying_warp is moves_registers(found.architecture) is (name in ("h200", "b200"))
    assert any(one.by_warpgroup for one in found.matrix_instructions) is (name == "h200")
    expected = {"a100": "sm_80", "l4": "sm_89", "h200": "sm_90a", "b200": "sm_100a", "b300": "sm_100"}
    assert found.architecture == expected.get(name, "sm_120")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("program", "name"), [(p, name) for p, (_, names) in PROGRAMS.items() for name in names])
def test_kernels_assemble_for_every_card(program: str, name: str, tmp_path: Path) -> None:
    device = card(name)
    for made in _kernels(program, name):
        assert made.kernel.launch is not None and made.kernel.launch.shared_bytes <= device.description.shared_bytes
        told = assembled(made, device.architecture, tmp_path)
        assert "'setmaxnreg' ignored" not in told, told
        is_known = made.kernel.name == "contract" and (program, name) in SPILL
        assert not spilled_bytes(told) or is_known, f"{made.kernel.name}: {told}"


@pytest.mark.exhaustive
def test_blocks_share_products_with_few_tiles_where_there_are_no_clusters() -> None:
    names = [made.kernel.name for made in _kernels("encoder_f32", "a100")]
    assert "contract_spans" in names and "contract_sum" in names


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["b200", "b300"])
def test_blocks_that_stay_have_a_warp_that_copies_where_it_can_give_registers_away(name: str) -> None:
    """B300 runs the code of sm_100, which has no instruction for that."""
    resident = [made for made in _kernels("step", name) if made.kernel.counter]
    assert len(resident) == 1 and ("setmaxnreg" in resident[0].text) is (name == "b200")
