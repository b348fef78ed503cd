"""One row times weights in blocks that bulk copies bring to shared memory, as launches and in a persistent kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import library, ops
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Alloc, CopyBulk
from dovetail.models.decoder import cached_decoder
from dovetail.models.decoder_shape import DecoderShape, DecoderStyle, parameter_shapes
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import kernels_of
from tests.block_arrays import assert_near, block_weights, floats_of, random_blocks
from tests.targets.cuda.simulated import SimulatedDriver, target_of

DEVICE = replace(H200, multiprocessors=8, cluster=4, dependent_intensity=inf, bulk_copies=True, cooperative="off")


def _driver(**changes: Any) -> SimulatedDriver:
    found = SimulatedDriver()
    found.description = replace(DEVICE, **changes)
    return found


def _run(builder: dovetail.Builder, params: dict[str, Array], x: Array) -> tuple[Array, int]:
    """The result, and the kernels that copy in bulk."""
    device = _driver()
    program = dovetail.compile(builder.graph(), target=target_of(device), cache="off").bind(params)
    kernels = [made.kernel for _, made in kernels_of(program.plan, device=device.description)]
    copying = [any(isinstance(s, CopyBulk) for s in everything(kernel.early)) for kernel in kernels]
    return program(x=x)["y"], sum(copying)


def _copied_product(kind: str, columns: int, depth: int) -> int:
    """The kernels that copy in bulk for one row times random blocks, whose product is near to float64."""
    blocks = random_blocks(kind, columns, depth, 7)
    builder = dovetail.Builder("product")
    builder.output("y", builder.input("x", f32[1, depth]) @ block_weights(builder, "w", kind, blocks))
    given = np.random.default_rng(1).normal(size=(1, depth)).astype(np.float32)
    found, copying = _run(builder, {"w": blocks}, given)
    assert_near(found, given.astype(np.float64) @ floats_of(kind, blocks).T)
    return copying


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "columns", "depth"),
    [
        ("q8_0", 64, 256), ("q4_1", 32, 512), ("mxfp4", 16, 256), ("q4_k", 64, 512), ("q6_k", 16, 1024),
        ("q5_k", 8, 256), ("q3_k", 16, 512), ("q2_k", 16, 256), ("iq4_xs", 16, 256), ("iq4_nl", 8, 256),
    ],
)  # fmt: skip
def test_columns_of_a_block_are_copied_whole(kind: str, columns: int, depth: int) -> None:
    assert _copied_product(kind, columns, depth) == 1


@pytest.mark.slow
def test_both_streams_of_a_gate_are_copied() -> None:
    blocks = [random_blocks("q8_0", 64, 256, seed) for seed in (1, 2)]
    builder = dovetail.Builder("gate")
    x = builder.input("x", f32[1, 256])
    up, gate = (block_weights(builder, name, "q8_0", b) for name, b in zip("ug", blocks, strict=True))
    builder.output("y", library.swiglu(x, up, gate))
    given = np.random.default_rng(1).normal(size=(1, 256)).astype(np.float32)
    found, copying = _run(builder, dict(zip("ug", blocks, strict=True)), given)
    a, b = (given.astype(np.float64) @ floats_of("q8_0", each).T for each in blocks)
    assert_near(found, a * b / (1 + np.exp(-b)))
    assert copying == 1


@pytest.mark.slow
def test_a_norm_before_blocks_is_in_the_product() -> None:
    """Gains multiply the row where it goes to shared memory, and its scale multiplies sums."""
    blocks, rng = random_blocks("q8_0", 64, 256, 7), np.random.default_rng(1)
    builder = dovetail.Builder("normed")
    x, gain = builder.input("x", f32[1, 256]), builder.param("gain", f32[256])
    builder.output("y", library.rms_norm(x, gain, eps=1e-3) @ block_weights(builder, "w", "q8_0", blocks))
    given, gains = rng.normal(size=(1, 256)).astype(np.float32), rng.normal(size=256).astype(np.float32)
    device = _driver()
    program = dovetail.compile(builder.graph(), target=target_of(device), cache="off")
    found = program.bind({"w": blocks, "gain": gains})(x=given)["y"]
    wide = given.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean() + 1e-3) * gains
    assert_near(found, normed @ floats_of("q8_0", blocks).T)
    (made,) = [made.kernel for _, made in kernels_of(program.plan, device=device.description)]
    assert any(isinstance(s, Alloc) and s.pointer == "squares" for s in made.body)


@pytest.mark.parametrize(("kind", "columns", "depth"), [("q8_0", 12, 256), ("q8_0", 16, 96)])
def test_columns_or_blocks_that_are_not_shared_evenly_are_read_from_memory(kind: str, columns: int, depth: int) -> None:
    assert _copied_product(kind, columns, depth) == 0


@pytest.mark.slow
def test_projections_in_several_formats_are_one_product() -> None:
    """Units hold both, and bytes of the files are all that the card has of them, but for bits that make them alike."""
    kinds = {"q": "q4_k", "v": "q6_k"}
    blocks = {name: random_blocks(kind, 16, 256, seed) for seed, (name, kind) in enumerate(kinds.items())}
    builder = dovetail.Builder("joined")
    x = builder.input("x", f32[1, 256])
    results = [x @ block_weights(builder, name, kind, blocks[name]) for name, kind in kinds.items()]
    builder.output("y", ops.concat(*results, axis=-1))
    given = np.random.default_rng(1).normal(size=(1, 256)).astype(np.float32)
    device = _driver()
    program = dovetail.compile(builder.graph(), target=target_of(device), cache="off").bind(blocks)
    wanted = [given.astype(np.float64) @ floats_of(kind, blocks[name]).T for name, kind in kinds.items()]
    assert_near(program(x=given)["y"], np.concatenate(wanted, axis=-1))
    assert [line for line in device.log if line.startswith("launch contract")] == ["launch contract"]
    # 228 bytes of 256 elements, where floats would be 1,024.
    assert sum(memory.nbytes for memory in device.memory.values()) < 32 * 228 + 4096


@pytest.mark.exhaustive
def test_products_that_differ_in_formats_alone_have_one_kernel() -> None:
    """Each packs its own blocks for it."""
    kinds = {"a": "q4_k", "b": "q6_k", "c": "q4_k"}
    blocks = {name: random_blocks(kind, 256, 256, seed) for seed, (name, kind) in enumerate(kinds.items())}
    builder = dovetail.Builder("layers")
    x = builder.input("x", f32[1, 256])
    for name, kind in kinds.items():
        x = x @ block_weights(builder, name, kind, blocks[name])
    builder.output("y", x)
    given, device = np.random.default_rng(1).normal(size=(1, 256)).astype(np.float32), _driver(multiprocessors=32)
    program = dovetail.compile(builder.graph(), target=target_of(device), cache="off").bind(blocks)
    wanted = given.astype(np.float64)
    for name, kind in kinds.items():
        wanted = wanted @ floats_of(kind, blocks[name]).T
    assert_near(program(x=given)["y"], wanted)
    _, second, third = (made.kernel for _, made in kernels_of(program.plan, device=device.description))
    assert second is third


DECODER = DecoderShape(
    layers=4, hidden=128, heads=4, kv_heads=2, width=32, inner=128, vocabulary=16, context=64, eps=1e-6,
    is_tied=True, style=DecoderStyle(normed_heads=True),
)  # fmt: skip
WIDER = replace(DECODER, hidden=256, heads=8, inner=256)


def _mixed(name: str, shape: tuple[int, ...]) -> str:
    """How files of the kind Q4_K_M store a parameter."""
    more = ("embedding", "layers.0.wv", "layers.0.down", "layers.3.wv", "layers.3.down")
    return "f32" if len(shape) != 2 else "q6_k" if name in more else "q4_k"


def _eight(name: str, shape: tuple[int, ...]) -> str:
    return "q8_0" if len(shape) == 2 else "f32"


def _token(of: DecoderShape, cached: int) -> dict[str, Array]:
    rng, size = np.random.default_rng(5), (1, of.kv_heads, 16, of.width)
    found: dict[str, Array] = {"input_ids": np.array([[7]]), "positions": np.array([cached])}
    found["keys"] = np.arange(cached + 1)
    for layer in range(of.layers):
        found |= {f"{side}_cache.{layer}": rng.normal(size=size).astype(np.float32) for side in "kv"}
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize(("of", "kind"), [(DECODER, _eight), (WIDER, _mixed)], ids=["q8_0", "q4_k_m"])
def test_all_layers_of_a_decoder_in_blocks_are_one_kernel(
    of: DecoderShape, kind: Callable[[str, tuple[int, ...]], str]
) -> None:
    """As for weights of 16 bits; the cpu judges it, and launches to the bit."""
    kinds = {name: kind(name, shape) for name, shape in parameter_shapes(of).items()}
    graph, params = cached_decoder(of, kinds), dict[str, Array]()
    for seed, (name, shape) in enumerate(parameter_shapes(of).items()):
        is_plain = kinds[name] == "f32"
        params[name] = np.ones(shape, np.float32) if is_plain else random_blocks(kinds[name], shape[0], shape[1], seed)
    launched, device = _driver(), _driver(cooperative="on")
    programs = [dovetail.compile(graph, target=target_of(one), cache="off").bind(params) for one in (launched, device)]
    apart, found = (program.run(_token(of, 9)) for program in programs)
    wanted = dovetail.compile(graph, cache="off").bind(params).run(_token(of, 9))
    for name, value in wanted.items():
        assert np.abs(np.asarray(found[name]) - value).max() < 1e-5 * np.abs(value).max()
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(apart[name]))
    assert [line for line in device.log if line.startswith("launch")].count("launch resident") == 1
    assert "launch contract" not in device.log
