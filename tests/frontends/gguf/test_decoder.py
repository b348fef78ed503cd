"""Decoders in GGUF files: logits in float64 by another builder of the same model, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.errors import DovetailError, LoadError, UnsupportedError
from dovetail.frontends.decoder_families import FAMILIES, DecoderFile, names_in_gguf, with_biases
from dovetail.frontends.gguf.decoder import read_decoder
from dovetail.frontends.gguf.file import read_gguf
from dovetail.ir import leaf
from dovetail.ir.dtype import u8
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.library.block_formats import FORMATS
from dovetail.library.dequantise_blocks import dequantise_blocks
from dovetail.models import LlamaShape, llama
from dovetail.models.decoder import cached_decoder
from tests.gguf_files import decoder, written

IDS = [3, 14, 15, 9, 26, 5, 35]


def read(tmp_path: Path, *given: Any) -> DecoderFile:
    path = tmp_path / "m.gguf"
    path.write_bytes(written(*given))
    return read_decoder(read_gguf(path))


def floats(array: Array, kind: Any) -> Array:
    """A matrix as it is meant."""
    if kind not in FORMATS:
        return array.astype(np.float32)
    y = dequantise_blocks(leaf.input("x", u8[array.shape]), format=kind)
    return dovetail.evaluate(Graph.of({"y": y}), {"x": array})["y"]


def halves(matrix: Array, heads: int) -> Array:
    """Rows whose pairs are neighbours, with pairs half a head apart."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def by_llama(found: DecoderFile) -> Array:
    """Logits after all tokens by `models.llama` in float64, with weights as floats."""
    of = found.shape
    shape = LlamaShape(
        of.layers,
        of.hidden,
        of.heads,
        of.kv_heads,
        of.inner,
        of.vocabulary,
        of.rope.theta,
        of.eps,
        of.style.normed_heads,
    )
    given = {name: floats(array, found.kinds[name]) for name, array in found.params.items()}
    params = {name: array.T if array.ndim == 2 and name != "embedding" else array for name, array in given.items()}
    params.setdefault("head", given["embedding"].T)
    if of.pairs == "interleaved":
        for index in range(of.layers):
            for side, heads in (("wq", of.heads), ("wk", of.kv_heads)):
                params[f"layers.{index}.{side}"] = halves(given[f"layers.{index}.{side}"], heads).T
    graph = llama(shape)
    return dovetail.evaluate(graph, {"input_ids": np.array([IDS])}, params=params, lift=True)["logits"][0]


def caches(found: DecoderFile, room: int = 16) -> dict[str, Array]:
    size = (1, found.shape.kv_heads, room, found.shape.width)
    return {f"{s}_cache.{i}": np.zeros(size, np.float32) for s in "kv" for i in range(found.shape.layers)}


def by_decoder(found: DecoderFile, **options: Any) -> Array:
    graph = cached_decoder(found.shape, found.kinds, seq="s", every_position=True)
    program = dovetail.compile(graph, cache="off", **options).bind(found.params)
    given = {"input_ids": np.array([IDS]), "positions": np.arange(len(IDS)), "keys": np.arange(len(IDS))}
    return program.run({**given, **caches(found)})["logits"][0]


CASES: dict[str, Any] = {
    "llama": decoder("llama"),
    "llama, its own head, four bits": decoder("llama", "q4_0", is_tied=False),
    "llama, plain": decoder("llama", "f16"),
    "qwen3, several formats": decoder("qwen3", "q4_1", kinds={"blk.0.attn_v.weight": "q8_0"}),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_model_with_floats(case: str, tmp_path: Path) -> None:
    found = read(tmp_path, *CASES[case])
    wanted, got = by_llama(found), by_decoder(found)
    assert np.abs(got - wanted).max() < 1e-5 * np.abs(wanted).max()
    assert (got.argmax(axis=-1) == wanted.argmax(axis=-1)).all()


def test_rates_of_rotation_are_divided_as_the_file_says(tmp_path: Path) -> None:
    fields, tensors = decoder(fields={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0})
    tensors["rope_freqs.weight"] = "f32", (8,), np.linspace(1, 4, 8, dtype=np.float32)
    assert read(tmp_path, fields, tensors).shape.rope.slowed == tuple(
        (2 * np.linspace(1, 4, 8, dtype=np.float32)).tolist()
    )


@pytest.mark.parametrize("name", ["llama.rope.scaling.factor", "llama.rope.scale_linear"])
def test_a_factor_without_a_kind_is_linear(name: str, tmp_path: Path) -> None:
    assert read(tmp_path, *decoder(fields={name: 2.0})).shape.rope.slowed == (2.0,) * 8


def test_gemma_2_bends_scores_where_a_file_says_nothing(tmp_path: Path) -> None:
    """Its first files were written before these fields; a bound of 0 is none."""
    fields, tensors = decoder("gemma2", layers=1)
    tensors |= {f"blk.0.post_{part}_norm.weight": tensors["output_norm.weight"] for part in ("attention", "ffw")}
    shape = read(tmp_path, fields, tensors).shape
    assert (shape.softcap, shape.final_softcap) == (50.0, 30.0)
    bounds = {"gemma2.attn_logit_softcapping": 0.0, "gemma2.final_logit_softcapping": 20.0}
    shape = read(tmp_path, {**fields, **bounds}, tensors).shape
    assert (shape.softcap, shape.final_softcap) == (0.0, 20.0)


def test_a_window_that_is_not_said_is_refused(tmp_path: Path) -> None:
    """Layers with it rotate in another way."""
    with pytest.raises(LoadError, match="sliding_window"):
        read(tmp_path, *decoder("gemma3", layers=1))


def test_biases_of_experts_are_not_read(tmp_path: Path) -> None:
    """Nothing would add them: such a file has a tensor too many, and is refused."""
    shape = replace(read(tmp_path, *decoder()).shape, style=FAMILIES["qwen3moe"].style, experts=4, chosen=2)
    found = with_biases(shape, names_in_gguf, {"blk.0.ffn_up_exps.bias", "blk.0.attn_output.bias"})
    assert found.style.biased == {"wo"}
    assert not [name for name in names_in_gguf(found).values() if name.endswith("exps.bias")]


def without(name: str) -> Any:
    fields, tensors = decoder()
    return {k: v for k, v in fields.items() if k != name}, {k: v for k, v in tensors.items() if k != name}


def saying(**fields: Any) -> Any:
    return decoder(fields={name.replace("__", "."): said for name, said in fields.items()})


def having(name: str, kind: str, shape: tuple[int, ...], array: Array) -> Any:
    fields, tensors = decoder()
    return fields, {**tensors, name: (kind, shape, array)}


REFUSED: dict[str, tuple[type[DovetailError], Any]] = {
    "another architecture": (UnsupportedError, saying(general__architecture="mamba")),
    "no architecture": (LoadError, without("general.architecture")),
    "no layers": (LoadError, saying(llama__block_count=0)),
    "far too many layers": (LoadError, saying(llama__block_count=1 << 30)),
    "no heads": (LoadError, saying(llama__attention__head_count=0)),
    "heads that do not divide": (UnsupportedError, saying(llama__attention__head_count_kv=3)),
    "a size as text": (LoadError, saying(llama__embedding_length="64")),
    "a rate that is not finite": (LoadError, saying(llama__rope__freq_base=float("nan"))),
    "an unknown scaling": (UnsupportedError, saying(llama__rope__scaling__type="dynamic")),
    "yarn to the base 1": (LoadError, saying(llama__rope__scaling__type="yarn", llama__rope__freq_base=1.0)),
    "experts": (UnsupportedError, saying(llama__expert_count=8)),
    "a tensor too few": (LoadError, without("blk.1.attn_v.weight")),
    "no embedding": (LoadError, without("token_embd.weight")),
    "a tensor too many": (UnsupportedError, having("blk.0.attn_sinks.weight", "f32", (4,), np.ones(4, np.float32))),
    "a vector in blocks": (LoadError, having("output_norm.weight", "q8_0", (64,), np.zeros(68, np.uint8))),
    "another shape": (LoadError, having("output_norm.weight", "f32", (63,), np.ones(63, np.float32))),
    "factors of 0": (LoadError, having("rope_freqs.weight", "f32", (8,), np.zeros(8, np.float32))),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_built_is_one_typed_error(case: str, tmp_path: Path) -> None:
    kind, given = REFUSED[case]
    with pytest.raises(kind) as caught:
        read(tmp_path, *given)
    assert type(caught.value) is kind and caught.value.hint
