"""Language models on a card: it chooses tokens, and caches stay there. A CPU judges the tokens.

Most of it runs on a CPU whose memory stands for a card's: the same graphs, arrays and parts of them. Runs of the
simulated card take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.errors import LoadError, OptionError, UnsupportedError
from dovetail.frontends.decoder_families import DecoderFile
from dovetail.ir.literal import Array
from dovetail.ir.type import SizeLike
from dovetail.language import LanguageModel, Sampling, caches, next_inputs
from dovetail.language.engine import Engine
from dovetail.language.generation import Request
from dovetail.language.programs import Programs
from dovetail.language.slots import Slots
from dovetail.models.decoder import NO_TOKEN, cached_decoder
from dovetail.models.decoder_shape import DecoderShape, parameter_shapes
from dovetail.models.kv_cache import CacheKind, copied_rows
from dovetail.runtime.program import Program
from dovetail.targets.runtime.arrays.device_array import DeviceArray
from tests.gguf_files import TOKENS, decoder, tokenizer_fields, written
from tests.targets.cuda.fake_memory import FakeMemory
from tests.targets.cuda.simulated import SimulatedDriver, target_of

PROMPT = [3, 14, 15, 9]
SHAPE = DecoderShape(1, 16, 1, 1, 8, 16, 40, 512)


def as_on_card(programs: Programs) -> Programs:
    """Programs that are used as those of a card."""
    programs.on_card, programs.on_cpu = True, False
    return programs


def twice(head: Array) -> Array:
    """A head in which every row has an equal: no logit is the largest one alone."""
    return np.concatenate([head[: len(head) // 2]] * 2)


def small(head: Callable[[Array], Array] = twice) -> DecoderFile:
    """A decoder of one layer with another head than a random one."""
    rng = np.random.default_rng(3)
    params = {n: rng.normal(size=size).astype(np.float32) / 4 for n, size in parameter_shapes(SHAPE).items()}
    return DecoderFile(SHAPE, {}, {**params, "head": head(params["head"])})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields, tensors = decoder("llama", "q8_0", vocabulary=len(TOKENS), layers=1)
    found = tmp_path_factory.mktemp("card") / "m.gguf"
    found.write_bytes(written({**fields, **tokenizer_fields()}, tensors))
    return found


@pytest.fixture(scope="module")
def cpu(path: Path) -> LanguageModel:
    return LanguageModel(path, cache="off")


@pytest.fixture
def card(path: Path) -> LanguageModel:
    found = LanguageModel(path, cache="off")
    as_on_card(found.programs)
    return found


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sequences each run had in which programs chose the tokens."""
    counts: list[int] = []
    likeliest = Slots.likeliest

    def counted(self: Slots, tokens: Mapping[int, int]) -> dict[int, int]:
        counts.append(len(tokens))
        return likeliest(self, tokens)

    monkeypatch.setattr(Slots, "likeliest", counted)
    return counts


def the_first_of_equals(programs: Programs, count: int) -> None:
    """Judge the tokens that programs choose by their own logits."""
    one, other = Slots(programs), Slots(programs)
    for token in PROMPT[:count]:
        logits = one.step({0: token})[0]
        assert np.count_nonzero(logits == logits.max()) == 2
        assert other.likeliest({0: token}) == {0: int(logits.argmax())}
    assert one.tokens == other.tokens == [PROMPT[:count]]


@pytest.mark.slow
def test_the_likeliest_token_is_the_first_of_equals() -> None:
    the_first_of_equals(as_on_card(Programs(small(), cache="off")), 4)


@pytest.mark.exhaustive
def test_a_card_chooses_the_first_of_equals() -> None:
    the_first_of_equals(Programs(small(), cache="off", target=target_of(SimulatedDriver())), 2)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("batch", [1, "b"])
def test_no_step_or_copy_moves_a_cache(batch: SizeLike, target: str) -> None:
    """Caches, and what the next step reads, are written in place."""
    step = cached_decoder(SHAPE, {}, batch=batch, chooses=True)
    for graph, count in ((step, 4), (copied_rows("f32", 1, 1, 8), 2)):
        donations = dovetail.compile(graph, target=target, cache="off").plan.donations
        assert [donation.copied for donation in donations] == [0] * count


def test_only_a_step_of_one_token_chooses_the_next_one() -> None:
    with pytest.raises(OptionError, match="next token"):
        cached_decoder(SHAPE, {}, seq="s", chooses=True)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_logits_without_a_likeliest_one_are_told(wrong: float) -> None:
    """A weight that is no number, or that overflows, is the error that the host raises of the logits."""
    positive = small(lambda head: np.where(np.arange(len(head))[:, None] == 7, np.float32(wrong), head))
    assert Slots(as_on_card(Programs(positive, cache="off"))).likeliest({0: 3}) == {0: NO_TOKEN}


@pytest.mark.slow
def test_a_text_without_a_likeliest_token_is_the_error_of_the_host(cpu: LanguageModel) -> None:
    for found in (NO_TOKEN, np.full(len(TOKENS), np.nan, np.float32)):
        with pytest.raises(LoadError, match="no numbers"):
            cpu.writer(PROMPT, Request(4)).take(found)


@pytest.mark.slow
def test_greedy_texts_have_the_tokens_of_a_cpu(card: LanguageModel, cpu: LanguageModel, chosen: list[int]) -> None:
    assert list(card.tokens(PROMPT, max_tokens=12)) == list(cpu.tokens(PROMPT, max_tokens=12))
    assert chosen == [1] * 11, "the first token is chosen from the logits of the prompt"
    chosen.clear()
    text = "".join(cpu.generate(PROMPT, max_tokens=12))
    stop = text[len(text) // 2]
    ours, theirs = ("".join(lm.generate(PROMPT, max_tokens=12, stop=stop)) for lm in (card, cpu))
    assert ours == theirs != text and chosen
    turns = [lm.tokens(PROMPT[:n], max_tokens=4) for lm in (card, cpu) for n in (4, 3)]
    found = [[next(each) for each in turns] for _ in range(4)]
    assert all(row[:2] == row[2:] for row in found), "texts in turns read what the other replaced"


REQUESTS = {
    "temperature": Request(6, Sampling(1.5, seed=7)),
    "top k": Request(6, Sampling(0.8, top_k=5, seed=1)),
    "repetition": Request(6, Sampling(repetition_penalty=1.7)),
    "presence": Request(6, Sampling(presence_penalty=2.0)),
    "frequency": Request(6, Sampling(frequency_penalty=2.0)),
    "bias": Request(6, Sampling(bias={9: 100.0})),
    "logprobs": Request(6, logprobs=2),
    "schema": Request(6, schema={"type": "integer"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REQUESTS)
def test_other_requests_read_the_logits(case: str, card: LanguageModel, cpu: LanguageModel, chosen: list[int]) -> None:
    assert list(card.pieces(PROMPT, REQUESTS[case])) == list(cpu.pieces(PROMPT, REQUESTS[case])) and not chosen


@pytest.mark.slow
def test_guesses_are_checked_by_logits(card: LanguageModel, cpu: LanguageModel, chosen: list[int]) -> None:
    wanted = list(cpu.tokens(PROMPT * 3, max_tokens=12))
    assert list(card.tokens(PROMPT * 3, max_tokens=12, speculate=3)) == wanted and len(chosen) < 11


def test_a_cpu_chooses_from_logits(cpu: LanguageModel, chosen: list[int]) -> None:
    assert list(cpu.tokens(PROMPT, max_tokens=3)) and not chosen
    assert "next_ids" not in cpu.step.graph.outputs


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["f32", "f16", "q8"])
def test_caches_of_several_sequences_stay_where_programs_run(kind: CacheKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences join, wait, share a beginning and outgrow their room, with the bits of caches on the host."""
    card, host = (Slots(Programs(small(), kind, cache="off"), 3) for _ in range(2))
    as_on_card(card._programs)  # pyright: ignore[reportPrivateUsage]
    every = [int(i) for i in np.random.default_rng(0).integers(0, SHAPE.vocabulary, 300)]
    moved: list[int] = []
    to_device = Program.to_device

    def counted(self: Program, inputs: Mapping[str, Array]) -> dict[str, DeviceArray]:
        moved.append(sum("cache" in name for name in inputs))
        return to_device(self, inputs)

    monkeypatch.setattr(Program, "to_device", counted)

    def step(tokens: dict[int, int]) -> None:
        ours, theirs = card.step(tokens), host.step(tokens)
        assert list(ours) == list(theirs) and all(np.array_equal(ours[slot], theirs[slot]) for slot in tokens)
        assert card.tokens == host.tokens

    for slot, count in ((0, 40), (2, 9)):
        assert np.array_equal(card.extend(slot, every[:count]), host.extend(slot, every[:count]))
    step({0: 3, 2: 4})
    step({2: 5})
    for slots in (card, host):
        slots.copy(0, 1, 35)
    step({1: 7})
    step({0: 8, 1: 9, 2: 10})
    assert np.count_nonzero(moved) == 1
    assert np.array_equal(card.extend(1, every), host.extend(1, every)), "a cache that grows comes back, and goes again"
    step({0: 11, 1: 12})
    likeliest = {slot: int(row.argmax()) for slot, row in host.step({0: 13, 2: 14}).items()}
    assert card.likeliest({0: 13, 2: 14}) == likeliest
    for slots in (card, host):
        slots.trim(1, 20)
    step({1: 3})
    assert np.count_nonzero(moved) == 2


@pytest.mark.slow
def test_arrays_of_few_ranges_of_slots_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (caches, next_inputs):
        monkeypatch.setattr(module, "MOST_RANGES", 2)
    card, host = (Slots(Programs(small(), cache="off"), 4) for _ in range(2))
    as_on_card(card._programs)  # pyright: ignore[reportPrivateUsage]
    for slot in range(4):
        for slots in (card, host):
            slots.extend(slot, PROMPT[slot:])
    for tokens in ({0: 1, 1: 2}, {1: 3, 3: 4}, {0: 5, 3: 6}, {2: 7}, {1: 3, 3: 4}, {0: 1, 1: 2}):
        assert card.likeliest(tokens) == {slot: int(row.argmax()) for slot, row in host.step(tokens).items()}


@pytest.mark.slow
def test_a_part_of_a_cache_is_not_copied_by_itself() -> None:
    slots = Slots(as_on_card(Programs(small(), cache="off")), 2)
    slots.extend(1, PROMPT)
    part = slots._caches.of(1, 2, slots._programs.step)["k_cache.0"]  # pyright: ignore[reportPrivateUsage]
    assert isinstance(part, DeviceArray) and part.shape == (1, 1, 256, 8) and part.device == "cpu"
    buffer = part.lease.buffer
    for call in (
        lambda: buffer.copy_to_host(np.empty(8)),
        lambda: buffer.copy_from_host(np.empty(8)),
        buffer.__dlpack__,
    ):
        with pytest.raises(UnsupportedError, match="part of a cache"):
            call()


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.2, seed=3)], ids=["greedy", "drawn"])
def test_requests_in_one_batch_have_the_tokens_of_a_cpu(
    sampling: Sampling, card: LanguageModel, cpu: LanguageModel, chosen: list[int]
) -> None:
    engine = Engine(card.programs, slots=2)
    try:
        prompts = (PROMPT, PROMPT[::-1])
        tickets = engine.submit_all([card.writer(prompt, Request(9, sampling)) for prompt in prompts])
        for ticket, prompt in zip(tickets, prompts, strict=True):
            found = [piece.token for piece in ticket if piece.token is not None]
            assert found == list(cpu.tokens(prompt, max_tokens=9, sampling=sampling))
    finally:
        engine.close()
    assert (2 in chosen) == sampling.takes_likeliest == bool(chosen)


@pytest.mark.slow
def test_a_request_that_is_drawn_does_not_change_greedy_ones(card: LanguageModel, cpu: LanguageModel) -> None:
    engine = Engine(card.programs, slots=2)
    try:
        asked = (Request(9), Request(9, Sampling(1.2, seed=3)))
        tickets = engine.submit_all([card.writer(PROMPT, each) for each in asked])
        for ticket, each in zip(tickets, asked, strict=True):
            found = [piece.token for piece in ticket if piece.token is not None]
            assert found == list(cpu.tokens(PROMPT, max_tokens=9, sampling=each.sampling))
    finally:
        engine.close()


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The bytes of each copy between the host and the simulated card."""
    found: list[tuple[str, int]] = []
    for way in ("DtoH", "HtoD"):
        copy: Any = getattr(FakeMemory, f"_cuMemcpy{way}Async_v2")

        def counted(
            self: Any, target: int, source: int, count: int, stream: int, way: str = way, copy: Any = copy
        ) -> Any:
            found.append((way, count))
            return copy(self, target, source, count, stream)

        monkeypatch.setattr(FakeMemory, f"_cuMemcpy{way}Async_v2", counted)
    return found


@pytest.mark.exhaustive
def test_tokens_that_a_card_chooses_copy_no_logits_and_no_cache(copied: list[tuple[str, int]]) -> None:
    card = Slots(Programs(small(), cache="off", target=target_of(SimulatedDriver())), 2)
    host = Slots(Programs(small(), cache="off"), 2)

    def near(ours: Array, theirs: Array) -> bool:
        return bool(np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max())

    for slot in (0, 1):
        assert near(*[slots.extend(slot, PROMPT[slot:]) for slots in (card, host)])
    for tokens in ({0: 3}, {0: 3, 1: 4}):
        for _ in range(2):
            copied.clear()
            found = card.likeliest(tokens)
            assert found == {slot: int(row.argmax()) for slot, row in host.step(tokens).items()}
            tokens = found
        assert copied == [("DtoH", 8 * len(tokens))], "the second step has its inputs from the first one"
    copied.clear()
    for slots in (card, host):
        slots.copy(0, 1, 5)
    assert near(*[slots.step({1: 3})[1] for slots in (card, host)])
    assert max(count for _, count in copied) < 1024, "a slot has 8,192 bytes of each cache"
