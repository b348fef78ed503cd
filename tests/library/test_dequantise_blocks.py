"""Block formats: to the last bit what the gguf package makes of the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph
from dovetail.derive.fuse import fuse
from dovetail.derive.unfuse import unfuse
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dtype import f32, u8
from dovetail.ir.literal import Array
from dovetail.library.block_formats import FORMATS
from dovetail.library.dequantise_blocks import dequantise_blocks
from dovetail.passes.canonicalize import canonicalize
from dovetail.targets.cpu.gemm.blocks.pack import spelled


def _with_scales_in_f32() -> dict[str, Array]:
    """The same for formats that GGUF has not, by NumPy."""
    rng = np.random.default_rng(5)
    found: dict[str, Array] = {}
    for name, bits, heads in (("int4", 4, 1), ("int4_low", 4, 2), ("int8_low", 8, 2)):
        floats = rng.normal(size=(3, 4, heads)).astype(np.float32)
        stored = rng.integers(0, 256, (3, 4, 4 * bits), dtype=np.uint8)
        codes = stored if bits == 8 else np.stack([stored & 15, stored >> 4], axis=-1).reshape(3, 4, 32)
        zero = {"int4": 8, "int8_low": 128}.get(name, 0)
        made = (codes.astype(np.float32) - np.float32(zero)) * floats[..., :1]
        made = made if heads == 1 else made + floats[..., 1:]
        found[name] = np.concatenate([floats.view(np.uint8), stored], axis=-1).reshape(3, -1)
        found[f"{name}.floats"] = made.reshape(3, -1)
    return found


GGUF: dict[str, Array] = dict(np.load(Path(__file__).parents[1] / "data" / "gguf_blocks.npz"))
"""Blocks of random bytes by format, and what `gguf.quants.dequantize` (0.19.0) gives for them."""
WANTED = {**GGUF, **_with_scales_in_f32()}


def test_every_format_has_blocks_to_compare() -> None:
    assert {*FORMATS, *(f"{name}.floats" for name in FORMATS)} == set(WANTED)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("target", "of"), [("reference", "a run"), ("cpu", "a run"), ("cpu", "weights")])
def test_floats_are_those_of_the_gguf_package(target: str, of: str) -> None:
    make = leaf.input if of == "a run" else leaf.param
    formats: list[Any] = list(FORMATS)
    given = {name: make(name, u8[WANTED[name].shape]) for name in formats}
    graph = Graph.of({f"{name}.floats": dequantise_blocks(x, format=name) for name, x in given.items()})
    arrays = {name: WANTED[name] for name in formats}
    program = dovetail.compile(graph, target=target, cache="off")
    found = program.run(arrays) if of == "a run" else program.bind(arrays).run({})
    assert [n for n, array in found.items() if n in GGUF and array.tobytes() != WANTED[n].tobytes()] == []
    for name, array in found.items():
        # Of a scale and a low in f32 the product is rounded before the sum, or is not.
        np.testing.assert_allclose(array, WANTED[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_parts_are_codes_within_their_bits_and_scales_within_their_type(name: str) -> None:
    of = FORMATS[name]
    codes, scale, low = spelled(name, WANTED[name])
    stored = codes.astype(np.int64) + of.zero
    assert stored.min() >= 0 and stored.max() < 2**of.bits
    narrow = scale.astype(of.scales.numpy).astype(np.float32)
    assert (narrow == scale).all() and (low is None or (low.astype(of.scales.numpy) == low).all())
    groups = codes.astype(np.float32).reshape(*scale.shape, of.group) * scale[..., None]
    floats = groups if low is None else groups + low[..., None]
    assert floats.tobytes() == WANTED[f"{name}.floats"].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("leading", [(), (1,), (2, 1)])
def test_rows_of_a_single_block_are_fused_again(leading: tuple[int, ...]) -> None:
    formats: list[Any] = list(FORMATS)
    for name in formats:
        fused = dequantise_blocks(leaf.input("x", u8[(*leading, FORMATS[name].bytes)]), format=name)
        plain = canonicalize(unfuse(Graph.of({"y": fused})))
        assert fuse(plain, [dequantise_blocks], always=True).graph.outputs["y"] is fused, name


def test_bytes_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(TypeRuleError):
        dequantise_blocks(leaf.input("x", u8[3, 35]), format="q8_0")
    with pytest.raises(TypeRuleError):
        dequantise_blocks(leaf.input("x", f32[3, 34]), format="q8_0")
