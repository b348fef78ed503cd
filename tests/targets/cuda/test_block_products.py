"""Products with weights in blocks on a GPU: float64 judges every format, and blocks are all that the card holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import library, ops
from dovetail.errors import BindError
from dovetail.frontends.gguf.decoder import read_decoder
from dovetail.frontends.gguf.file import read_gguf
from dovetail.ir.dtype import f32, i64
from dovetail.ir.literal import Array
from dovetail.language import LanguageModel
from dovetail.language.programs import Programs
from dovetail.language.slots import Slots
from dovetail.library.block_formats import FORMATS
from dovetail.targets.runtime.building import store as stores
from tests.block_arrays import assert_near, block_weights, floats_of, random_blocks
from tests.gguf_files import TOKENS, decoder, tokenizer_fields, written
from tests.targets.cuda.simulated import SimulatedDriver, target_of


def _run(builder: dovetail.Builder, params: dict[str, Array], **given: Array) -> tuple[Array, SimulatedDriver, Any]:
    device = SimulatedDriver()
    program = dovetail.compile(builder.graph(), target=target_of(device), cache="off").bind(params)
    return program(**given)["y"], device, program


def _product(kind: str, rows: int | str, count: int, columns: int, depth: int) -> tuple[Array, Array, SimulatedDriver]:
    """The product of so many rows with random blocks, and what float64 has."""
    blocks = random_blocks(kind, columns, depth, 7)
    builder = dovetail.Builder("product")
    x = builder.input("x", f32[rows, depth])
    builder.output("y", x @ block_weights(builder, "w", kind, blocks))
    given = np.random.default_rng(1).normal(size=(count, depth)).astype(np.float32)
    found, device, _ = _run(builder, {"w": blocks}, x=given)
    return found, given.astype(np.float64) @ floats_of(kind, blocks).T, device


@pytest.mark.parametrize("kind", [*FORMATS])
def test_one_row_with_blocks_of_every_format(kind: str) -> None:
    found, wanted, device = _product(kind, 1, 1, 8, 2 * FORMATS[kind].elements)
    assert_near(found, wanted)
    assert [line for line in device.log if line.startswith("launch")] == ["launch contract"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "columns", "depth"), [("q8_0", 9, 96), ("q4_1", 17, 160)])
def test_several_rows_with_columns_and_blocks_that_lanes_do_not_share_evenly(
    kind: str, columns: int, depth: int
) -> None:
    assert_near(*_product(kind, 3, 3, columns, depth)[:2])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["q8_0", "q4_1", pytest.param("q6_k", marks=pytest.mark.exhaustive)])
def test_tiles_of_more_rows_expand_blocks_as_they_load(kind: str) -> None:
    assert_near(*_product(kind, "s", 9, 5, FORMATS[kind].elements)[:2])


@pytest.mark.slow
def test_both_streams_of_a_gate_read_blocks() -> None:
    blocks = [random_blocks("q4_0", 8, 64, seed) for seed in (1, 2)]
    builder = dovetail.Builder("gate")
    x = builder.input("x", f32[1, 64])
    up, gate = (block_weights(builder, name, "q4_0", b) for name, b in zip("ug", blocks, strict=True))
    builder.output("y", library.swiglu(x, up, gate))
    given = np.random.default_rng(1).normal(size=(1, 64)).astype(np.float32)
    found, _, program = _run(builder, dict(zip("ug", blocks, strict=True)), x=given)
    a, b = (given.astype(np.float64) @ floats_of("q4_0", each).T for each in blocks)
    assert_near(found, a * b / (1 + np.exp(-b)))
    assert program.report.count("swiglu") == 1


@pytest.mark.slow
def test_projections_of_one_row_are_one_product_of_joined_blocks() -> None:
    blocks = [random_blocks("q8_0", columns, 64, columns) for columns in (16, 8)]
    builder = dovetail.Builder("joined")
    x = builder.input("x", f32[1, 64])
    q, k = (x @ block_weights(builder, name, "q8_0", b) for name, b in zip("qk", blocks, strict=True))
    builder.output("y", ops.concat(q, k, axis=-1))
    given = np.random.default_rng(1).normal(size=(1, 64)).astype(np.float32)
    found, device, _ = _run(builder, dict(zip("qk", blocks, strict=True)), x=given)
    assert_near(found, given.astype(np.float64) @ floats_of("q8_0", np.concatenate(blocks)).T)
    assert sum("launch contract" in line for line in device.log) == 1


def test_the_card_holds_the_bytes_of_the_file() -> None:
    """Floats would take eight times as many, and nothing computes them."""
    blocks = random_blocks("q4_0", 64, 512)
    builder = dovetail.Builder("product")
    x = builder.input("x", f32[1, 512])
    builder.output("y", x @ block_weights(builder, "w", "q4_0", blocks))
    device = SimulatedDriver()
    dovetail.compile(builder.graph(), target=target_of(device), cache="off").bind({"w": blocks})
    held = sum(memory.nbytes for memory in device.memory.values())
    assert blocks.nbytes <= held < blocks.nbytes + 4096


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["q8_0", "q6_k", "iq4_xs"])
def test_programs_with_blocks_are_kept_for_other_processes(kind: str, tmp_path: Path) -> None:
    """Kernels come from the store, and pack blocks as before."""
    blocks = random_blocks(kind, 8, 256, 7)
    builder = dovetail.Builder("product")
    builder.output("y", builder.input("x", f32[1, 256]) @ block_weights(builder, "w", kind, blocks))
    given, found = np.random.default_rng(1).normal(size=(1, 256)).astype(np.float32), list[Array]()
    device = SimulatedDriver()
    for _ in range(2):
        stores._store.cache_clear()  # pyright: ignore[reportPrivateUsage]
        program = dovetail.compile(builder.graph(), target=target_of(device), cache=str(tmp_path))
        found.append(program.bind({"w": blocks})(x=given)["y"])
    assert stores.CodeStore(tmp_path, 1 << 30).status().entries.get("program") == 1
    np.testing.assert_array_equal(found[0], found[1])


def test_a_refused_index_is_told_although_weights_were_never_spelled_out() -> None:
    blocks = random_blocks("q8_0", 8, 32)
    builder = dovetail.Builder("looked_up")
    rows = ops.gather(builder.param("table", f32[4, 32]), builder.input("at", i64[1]), axis=0)
    builder.output("y", rows @ block_weights(builder, "w", "q8_0", blocks))
    table = np.ones((4, 32), np.float32)
    with pytest.raises(dovetail.errors.DovetailError, match="9") as raised:
        _run(builder, {"table": table, "w": blocks}, at=np.array([9]))
    assert not isinstance(raised.value, BindError) or "overwritten" not in str(raised.value)


def _tiny(path: Path, kind: str = "q8_0") -> Path:
    fields, tensors = decoder("llama", kind, hidden=32, heads=2, kv_heads=1, inner=32, layers=1, vocabulary=len(TOKENS))
    path.write_bytes(written({**fields, **tokenizer_fields()}, tensors))
    return path


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["q8_0", "f32"])
def test_a_token_of_a_decoder_has_the_logits_of_the_cpu(tmp_path: Path, kind: str) -> None:
    found = read_decoder(read_gguf(_tiny(tmp_path / "m.gguf", kind)))
    given: list[dict[str, Any]] = [{"target": target_of(SimulatedDriver())}, {}]
    both = [Slots(Programs(found, cache="off", **options)) for options in given]
    for room in (0, 300):
        # A cache that grows comes from the card and goes back.
        for slots in both:
            slots.make_room(room)
        card, cpu = (slots.extend(0, [3]) for slots in both)
        assert np.abs(card - cpu).max() < 1e-5 * np.abs(cpu).max()


@pytest.mark.exhaustive
def test_a_language_model_writes_the_tokens_that_the_cpu_writes(tmp_path: Path) -> None:
    path = _tiny(tmp_path / "m.gguf")
    on_card = LanguageModel(path, target=target_of(SimulatedDriver()), cache="off")
    on_cpu = LanguageModel(path, cache="off")
    assert list(on_card.tokens([3, 14], max_tokens=3)) == list(on_cpu.tokens([3, 14], max_tokens=3))
