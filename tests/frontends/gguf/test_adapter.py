"""LoRA adapters: logits are those of the matrices that NumPy merges them into; what does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.errors import LoadError, OptionError, UnsupportedError
from dovetail.frontends.gguf.adapter import with_adapter
from dovetail.frontends.gguf.decoder import read_decoder
from dovetail.frontends.gguf.file import GgufFile, read_gguf
from dovetail.ir.literal import Array
from dovetail.language.programs import Programs
from dovetail.language.slots import Slots
from dovetail.targets.cpu.gemm.blocks.pack import spelled
from tests.gguf_files import Tensors, decoder, written

ALPHA, RANK = 6.0, 3
IDS = [5, 1, 7, 7, 2, 30, 4]
FIELDS: dict[str, Any] = {
    "general.type": "adapter",
    "general.architecture": "qwen3",
    "adapter.type": "lora",
    "adapter.lora.alpha": ALPHA,
}
UPDATED = [
    f"blk.0.{part}.weight" for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate", "ffn_down")
]


def base(folder: Path, kind: str) -> tuple[GgufFile, dict[str, Any], dict[str, tuple[str, tuple[int, ...], Array]]]:
    fields, tensors = decoder("qwen3", kind, layers=1)
    return saved(folder / f"{kind}.gguf", fields, tensors), fields, tensors


def saved(path: Path, fields: dict[str, Any], tensors: Tensors) -> GgufFile:
    path.write_bytes(written(fields, tensors))
    return read_gguf(path)


def updates(tensors: Tensors, names: list[str]) -> dict[str, tuple[str, tuple[int, ...], Array]]:
    rng, found = np.random.default_rng(1), dict[str, tuple[str, tuple[int, ...], Array]]()
    for name in names:
        rows, columns = tensors[name][1]
        a, b = (rng.normal(size=size).astype(np.float16) / 4 for size in ((RANK, columns), (rows, RANK)))
        found |= {f"{name}.lora_a": ("f16", a.shape, a), f"{name}.lora_b": ("f16", b.shape, b)}
    return found


def logits(programs: Programs) -> Array:
    return Slots(programs).extend(0, IDS, len(IDS))


@pytest.mark.exhaustive
def test_logits_are_those_of_merged_matrices(tmp_path: Path) -> None:
    file, fields, tensors = base(tmp_path, "q8_0")
    adapter = updates(tensors, UPDATED)
    merged = dict(tensors)
    for name, (stored, shape, array) in tensors.items():
        if stored in ("f32", "f16"):
            continue
        codes, scale, _ = spelled(stored, array)
        floats = codes.reshape(*scale.shape, -1) * scale[..., None]
        merged[name] = "f32", shape, floats.reshape(shape).astype(np.float32)
    for name in UPDATED:
        a, b = (adapter[f"{name}.lora_{side}"][2].astype(np.float64) for side in "ab")
        merged[name] = "f32", tensors[name][1], (merged[name][2] + 0.5 * ALPHA / RANK * b @ a).astype(np.float32)
    updated = with_adapter(read_decoder(file), fields, saved(tmp_path / "lora.gguf", FIELDS, adapter), 0.5)
    programs = Programs(updated, cache="off")
    found = logits(programs)
    wanted = logits(Programs(read_decoder(saved(tmp_path / "merged.gguf", fields, merged)), cache="off"))
    assert np.abs(found - wanted).max() < 2e-5 * np.abs(wanted).max()
    slots = Slots(programs)
    for at, token in enumerate(IDS):
        assert np.array_equal(slots.extend(0, [token])[0], found[at]), "tokens one by one have the same bits"


def _without_b(fields: dict[str, Any], tensors: dict[str, Any]) -> None:
    del tensors[f"{UPDATED[0]}.lora_b"]


def _of_another_rank(fields: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors[f"{UPDATED[0]}.lora_a"] = ("f16", (2, 64), np.zeros((2, 64), np.float16))


def _for_another_model(fields: dict[str, Any], tensors: dict[str, Any]) -> None:
    fields["general.architecture"] = "llama"


def _of_another_kind(fields: dict[str, Any], tensors: dict[str, Any]) -> None:
    fields["adapter.type"] = "control_vector"


def _without_alpha(fields: dict[str, Any], tensors: dict[str, Any]) -> None:
    fields["adapter.lora.alpha"] = float("nan")


def _of_the_embedding(fields: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors |= updates({"token_embd.weight": ("f32", (80, 64), np.zeros(0))}, ["token_embd.weight"])


@pytest.mark.parametrize(
    "damage", [_without_b, _of_another_rank, _for_another_model, _of_another_kind, _without_alpha, _of_the_embedding]
)
def test_adapters_that_do_not_fit_are_refused(damage: Any, tmp_path: Path) -> None:
    file, fields, tensors = base(tmp_path, "f32")
    said, adapter = dict(FIELDS), updates(tensors, UPDATED[:1])
    damage(said, adapter)
    with pytest.raises((LoadError, UnsupportedError)) as error:
        with_adapter(read_decoder(file), fields, saved(tmp_path / "lora.gguf", said, adapter))
    assert error.value.hint and "lora.gguf" in str(error.value.where)


def test_a_model_file_is_no_adapter(tmp_path: Path) -> None:
    file, fields, _ = base(tmp_path, "f32")
    with pytest.raises(LoadError, match=r"general\.type"):
        with_adapter(read_decoder(file), fields, file)


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_updates_are_taken_a_finite_number_of_times(scale: float, tmp_path: Path) -> None:
    file, fields, tensors = base(tmp_path, "f32")
    with pytest.raises(OptionError):
        with_adapter(
            read_decoder(file), fields, saved(tmp_path / "lora.gguf", FIELDS, updates(tensors, UPDATED[:1])), scale
        )
