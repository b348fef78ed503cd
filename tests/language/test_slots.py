"""Sequences in one batch: each has the bits that it has alone, whatever joins and leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.errors import OptionError
from dovetail.frontends.decoder_families import DecoderFile
from dovetail.frontends.gguf.decoder import read_decoder
from dovetail.frontends.gguf.file import read_gguf
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.language import programs as programs_module
from dovetail.language import slots as slots_module
from dovetail.language.programs import Programs
from dovetail.language.slots import Slots, common
from dovetail.models.decoder_shape import DecoderShape, DecoderStyle, Rope, parameter_shapes
from dovetail.runtime.program import Program
from dovetail.targets.cpu import backend
from tests.gguf_files import TOKENS, decoder, tokenizer_fields, written

IDS = [int(i) for i in np.random.default_rng(0).integers(0, len(TOKENS), 90)]


def programs(folder: Path, kind: str, architecture: str, **options: Any) -> Programs:
    fields, tensors = decoder(architecture, kind, vocabulary=len(TOKENS), layers=1)
    path = folder / f"{architecture}-{kind}.gguf"
    path.write_bytes(written({**fields, **tokenizer_fields()}, tensors))
    return Programs(read_decoder(read_gguf(path)), cache="off", **options)


@pytest.fixture(scope="module", params=[("q4_0", "llama"), ("f32", "qwen3"), ("q8_0", "qwen2")], ids="-".join)
def of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return programs(tmp_path_factory.mktemp("slots"), *request.param)


@pytest.fixture(scope="module")
def alone(of: Programs) -> Array:
    """Logits after each of the tokens, in one run."""
    return Slots(of).extend(0, IDS, len(IDS))


@pytest.mark.exhaustive
def test_runs_of_a_prompt_compute_the_logits_that_are_wanted(
    of: Programs, alone: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def run(given: Any, *rest: Any, **more: Any) -> Any:
        asked.append(len(given["wanted"]))
        return before(given, *rest, **more)

    before = of.prompt.run
    monkeypatch.setattr(slots_module, "CHUNK", 40)
    monkeypatch.setattr(of.prompt, "run", run)
    slots = Slots(of)
    for wanted, counts in ((1, [0, 0, 1]), (10, [0, 0, 10]), (11, [0, 1, 10]), (len(IDS), [40, 40, 10])):
        asked.clear()
        slots.trim(0, 0)
        assert np.array_equal(slots.extend(0, IDS, wanted), alone[-wanted:]) and asked == counts
    slots.trim(0, 0)
    assert np.array_equal(slots.extend(0, IDS[:41]), alone[40:41]), "a token alone is a step, which has logits"


STYLES: dict[str, tuple[DecoderStyle, dict[str, Any]]] = {
    "one head of keys": (DecoderStyle(), {"kv_heads": 1}),
    "norms after": (DecoderStyle(norms_after=True, act="gelu_tanh", scaled_embedding=True), {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", STYLES)
def test_a_token_has_its_bits_however_a_prompt_is_cut(case: str) -> None:
    style, sizes = STYLES[case]
    given: dict[str, Any] = {"kv_heads": 2, **sizes}
    shape = DecoderShape(1, 64, 4, width=16, inner=96, vocabulary=101, context=64, is_tied=True, style=style, **given)
    rng = np.random.default_rng(3)
    params = {
        name: (rng.normal(size=size) / size[-1] ** 0.5 + (len(size) == 1)).astype(np.float32)
        for name, size in parameter_shapes(shape).items()
    }
    of = Programs(DecoderFile(shape, {}, params), cache="off")
    ids = [i % 101 for i in IDS[:40]]
    whole = Slots(of).extend(0, ids, len(ids))
    slots = Slots(of)
    parts = [slots.extend(0, ids[:20], 20), *[slots.extend(0, [token]) for token in ids[20:]]]
    assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.slow
def test_layers_with_a_window_keep_their_rotation_where_the_context_is_within_it() -> None:
    def logits(context: int) -> Array:
        shape = DecoderShape(
            2, 32, 2, 2, 16, 48, 50, context, local_rope=Rope(100.0), window=32, windowed=(True, False), is_tied=True
        )
        rng = np.random.default_rng(3)
        params = {name: rng.normal(size=size).astype(np.float32) / 4 for name, size in parameter_shapes(shape).items()}
        return Slots(Programs(DecoderFile(shape, {}, params), cache="off")).extend(0, list(range(20)), 20)

    assert np.allclose(logits(24), logits(64), rtol=1e-5, atol=1e-5)


@pytest.mark.exhaustive
def test_sequences_join_and_leave_and_change_no_bit(of: Programs, alone: Array) -> None:
    slots, rng = Slots(of, 5), np.random.default_rng(1)
    active: dict[int, int] = {}
    steps = 0
    for _ in range(40):
        for slot in range(5):
            if slot in active and (rng.random() < 0.15 or active[slot] >= len(IDS) - 1):
                del active[slot]
            elif slot not in active and rng.random() < 0.3:
                slots.trim(slot, 0)
                active[slot] = int(rng.integers(1, 40))
                assert np.array_equal(slots.extend(slot, IDS[: active[slot]])[0], alone[active[slot] - 1])
        if active:
            found = slots.step({slot: IDS[at] for slot, at in active.items()})
            for slot, at in active.items():
                assert np.array_equal(found[slot], alone[at]), (slot, at, sorted(active))
                active[slot] = at + 1
                steps += 1
    assert steps > 50


@pytest.mark.slow
def test_a_copied_prefix_is_as_good_as_reading_it(of: Programs, alone: Array) -> None:
    slots = Slots(of, 3)
    slots.extend(0, IDS[:50])
    slots.copy(0, 2, 33)
    assert slots.tokens[2] == IDS[:33]
    assert np.array_equal(slots.extend(2, IDS[33:60])[0], alone[59])
    assert np.array_equal(slots.extend(0, IDS[50:60])[0], alone[59]), "the source is as it was"


@pytest.mark.slow
def test_a_slot_that_waits_keeps_its_tokens(of: Programs, alone: Array) -> None:
    slots = Slots(of, 3)
    for slot in range(3):
        slots.extend(slot, IDS[: 20 + slot])
    slots.step({0: IDS[20], 2: IDS[22]})
    assert np.array_equal(slots.extend(1, [IDS[21]])[0], alone[21])


@pytest.mark.slow
def test_threads_change_no_bit(tmp_path: Path) -> None:
    one, two = (Slots(programs(tmp_path, "q8_0", "llama", threads=n), 2) for n in (1, 2))
    for slots in (one, two):
        for slot in (0, 1):
            slots.extend(slot, IDS[: 9 + slot])
    a, b = one.step({0: 3, 1: 4}), two.step({0: 3, 1: 4})
    assert all(np.array_equal(a[slot], b[slot]) for slot in (0, 1))


def test_logits_of_the_last_tokens_across_chunks(of: Programs, alone: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.language.slots.CHUNK", 32)
    for wanted in (1, 5, 26, 27, 60, 90):
        assert np.array_equal(Slots(of).extend(0, IDS, wanted), alone[-wanted:])


@pytest.mark.slow
def test_only_runs_whose_logits_are_wanted_read_the_head(of: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.language.slots.CHUNK", 32)
    given: list[int] = []
    run: Callable[[Program, dict[str, Array]], Any] = Program.run

    def watched(self: Program, feeds: dict[str, Array]) -> Any:
        given.append(len(feeds["wanted"]))
        return run(self, feeds)

    monkeypatch.setattr(Program, "run", watched)
    for wanted, counts in ((1, [0, 0, 1]), (20, [0, 4, 16])):
        given.clear()
        assert len(Slots(of).extend(0, IDS[:80], wanted)) == wanted and given == counts


def test_no_slots_are_refused(of: Programs) -> None:
    with pytest.raises(OptionError):
        Slots(of, 0)


def test_common_beginnings() -> None:
    assert common([1, 2, 3], [1, 2, 4]) == 2 and common([], [1]) == 0 and common([1], [1, 2]) == 1


@pytest.mark.exhaustive
def test_prompts_on_tiles_are_near_those_of_exact_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With AMX, here in plain vector code, a run of fast mode takes more tokens, whose products are of bf16."""
    device = CpuDevice(512, 32, ("amx_bf16", "f16_conversion", "vnni"), emulated=True)
    wanted = Slots(programs(tmp_path, "q8_0", "qwen3")).extend(0, IDS, len(IDS))
    for module in (backend, programs_module):
        monkeypatch.setattr(module, "host_device", lambda: device)
    made = programs(tmp_path, "q8_0", "qwen3", precision="fast")
    found = Slots(made).extend(0, IDS, len(IDS))
    assert made.on_tiles and not programs(tmp_path, "q8_0", "qwen3").on_tiles
    assert 1e-6 < float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)) < 1e-2
