"""Language models from files: greedy tokens are those of the model with floats, whatever the cache holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import dovetail
from dovetail.errors import LoadError, OptionError, UnsupportedError
from dovetail.frontends.gguf.decoder import read_decoder
from dovetail.frontends.gguf.file import read_gguf
from dovetail.language import LanguageModel, Sampling
from dovetail.language.generation import Request
from dovetail.language.look_up import draft
from dovetail.language.programs import Programs
from dovetail.language.session import Session
from dovetail.models.decoder import cached_decoder
from dovetail.models.kv_cache import CacheKind
from dovetail.targets.cpu.isa import host_device
from tests.gguf_files import TOKENS, decoder, tokenizer_fields, written


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("language") / "m.gguf"
    fields, tensors = decoder("llama", "q8_0", vocabulary=len(TOKENS))
    found.write_bytes(written({**fields, **tokenizer_fields()}, tensors))
    return found


@pytest.fixture(scope="module")
def model(path: Path) -> LanguageModel:
    return LanguageModel(path, cache="off")


PROMPT = [3, 14, 15, 9, 26]


def by_floats(path: Path, ids: list[int], count: int) -> list[int]:
    """Greedy tokens by the reference in float64, all tokens anew in every step."""
    found = read_decoder(read_gguf(path))
    of = found.shape
    graph, ids = cached_decoder(of, found.kinds, seq="s"), list(ids)
    for _ in range(count):
        size = (1, of.kv_heads, len(ids), of.width)
        state = {f"{s}_cache.{i}": np.zeros(size) for s in "kv" for i in range(of.layers)}
        given = {"input_ids": np.array([ids]), "positions": np.arange(len(ids)), "keys": np.arange(len(ids))}
        logits = dovetail.evaluate(graph, {**given, **state}, params=found.params, lift=True)["logits"]
        ids.append(int(logits[0, 0].argmax()))
    return ids[-count:]


@pytest.mark.slow
def test_greedy_tokens_are_those_of_the_model_with_floats(path: Path, model: LanguageModel) -> None:
    assert list(model.tokens(PROMPT, max_tokens=12)) == by_floats(path, PROMPT, 12)


@pytest.mark.slow
def test_the_first_token_waits_for_one_program(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    plain = Programs._program  # pyright: ignore[reportPrivateUsage]

    def seen(self: Programs, name: str) -> Any:
        compiled.append(name)
        return plain(self, name)

    monkeypatch.setattr(Programs, "_program", seen)
    session = LanguageModel(path, cache="off").session()
    session.extend([1, 2, 3])
    assert set(compiled) == {"prompt"}
    session.extend([4])
    assert set(compiled) == {"prompt", "step"}


def test_a_kept_prefix_changes_no_token(model: LanguageModel) -> None:
    longer = [*PROMPT, 7, 8]
    anew = list(LanguageModel.tokens(model, longer, max_tokens=10))
    list(model.tokens([40, 41, 42, 43], max_tokens=4))
    list(model.tokens(PROMPT, max_tokens=6))
    assert list(model.tokens(longer, max_tokens=10)) == anew == list(model.tokens(longer, max_tokens=10))


def test_texts_that_are_generated_in_turns_do_not_mix(model: LanguageModel) -> None:
    prompts = [PROMPT, [40, 41, 42], [*PROMPT, 50]]
    wanted = [list(model.tokens(prompt, max_tokens=8)) for prompt in prompts]
    turns = [model.tokens(prompt, max_tokens=8) for prompt in prompts]
    found = [list(step) for step in zip(*turns, strict=False)]
    assert found == [list(step) for step in zip(*wanted, strict=False)] and found


def test_tokens_one_by_one_and_at_once_give_the_same_logits(model: LanguageModel) -> None:
    ids = [int(i) for i in np.random.default_rng(0).integers(0, len(TOKENS), 40)]
    at_once, single, parts = model.session(), model.session(), model.session()
    wanted = at_once.extend(ids)
    logits = [single.extend([token]) for token in ids][-1]
    found = [parts.extend(ids[start : start + 7]) for start in range(0, 40, 7)][-1]
    assert np.array_equal(logits, wanted) and np.array_equal(found, wanted), "to the last bit"
    assert at_once.tokens == single.tokens == parts.tokens == ids


def test_the_cache_grows_without_a_new_program(model: LanguageModel) -> None:
    session = model.session()
    session.extend([1] * 250)
    steps = [session.extend([2]) for _ in range(12)]
    assert len(session.tokens) == 262 and all(np.isfinite(logits).all() for logits in steps)


def test_seeds_decide_what_is_drawn(model: LanguageModel) -> None:
    def drawn(seed: int) -> list[int]:
        return list(model.tokens(PROMPT, max_tokens=16, sampling=Sampling(temperature=1.5, seed=seed)))

    assert drawn(1) == drawn(1) != drawn(2)


def test_text_in_and_text_out(model: LanguageModel) -> None:
    ids = model.tokenizer.encode("hello w")
    tokens = list(model.tokens(ids, max_tokens=20))
    pieces = list(model.generate("hello w", max_tokens=20))
    assert "".join(pieces) == model.tokenizer.decode(tokens)
    text = "".join(pieces)
    stop = text[5:8]
    before = text[: text.index(stop)]
    assert "".join(model.generate("hello w", max_tokens=20, stop=[stop])) == before
    assert "".join(model.generate("hello w", max_tokens=20, stop=stop)) == before, "one text is not its characters"
    for odd in ([3], ["a"] * 17, ["x" * 1025]):
        with pytest.raises(OptionError):
            model.generate("hello w", stop=cast(Any, odd))


@pytest.mark.slow
def test_rows_without_a_name_have_no_text(tmp_path: Path) -> None:
    """Matrices are padded to sizes that suit a machine, and names are not."""
    fields, tensors = decoder("llama", "q8_0", vocabulary=len(TOKENS) + 60, layers=1)
    path = tmp_path / "m.gguf"
    path.write_bytes(written({**fields, **tokenizer_fields()}, tensors))
    model = LanguageModel(path, cache="off")
    pieces = list(model.pieces("hello", Request(60, Sampling(2.0, seed=1), logprobs=20)))
    tokens = [piece.token for piece in pieces if piece.token is not None]
    assert max(tokens) >= len(TOKENS)
    assert model.tokenizer.decode(tokens) == model.tokenizer.decode([t for t in tokens if t < len(TOKENS)])


@pytest.mark.slow
@pytest.mark.parametrize("end", [len(TOKENS), 10**9])
def test_an_end_that_is_no_token_harms_no_schema(end: int, tmp_path: Path) -> None:
    fields, tensors = decoder("llama", "q8_0", vocabulary=len(TOKENS), layers=1)
    path = tmp_path / "m.gguf"
    path.write_bytes(written({**fields, **tokenizer_fields(), "tokenizer.ggml.eos_token_id": end}, tensors))
    assert "".join(LanguageModel(path, cache="off").generate("hello", schema={"enum": ["a"]})) == '"a"'


@pytest.mark.slow
def test_weights_that_are_no_numbers_are_one_typed_error(tmp_path: Path) -> None:
    fields, tensors = decoder("llama", "q8_0", vocabulary=len(TOKENS), layers=1)
    kind, shape, gain = tensors["output_norm.weight"]
    gain[0] = np.inf
    path = tmp_path / "m.gguf"
    path.write_bytes(written({**fields, **tokenizer_fields()}, {**tensors, "output_norm.weight": (kind, shape, gain)}))
    model = LanguageModel(path, cache="off")
    for ask in (lambda: list(model.tokens(PROMPT)), lambda: model.embed(PROMPT), lambda: model.log_likelihoods(PROMPT)):
        with pytest.raises(LoadError, match="no numbers"):
            ask()


def test_bad_prompts_are_refused_before_anything_runs(model: LanguageModel) -> None:
    odd: list[Any] = [None, 5, b"abc", {1: 2}, ["a"], [[1]], [1.5], [True], np.array([1.5]), np.array([[1]])]
    for prompt in ([], [len(TOKENS)], [-1], [1] * 513, "", *odd):
        with pytest.raises(OptionError) as caught:
            list(model.tokens(prompt))
        assert caught.value.hint
    for how in (
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"max_tokens": "3"},
        {"speculate": 17},
        {"speculate": "2"},
        {"speculate": True},
    ):
        with pytest.raises(OptionError):
            list(model.tokens(PROMPT, **cast(Any, how)))
    assert list(model.tokens(PROMPT, max_tokens=0)) == []
    assert list(model.tokens(cast(Any, np.array(PROMPT)), max_tokens=3)) == list(model.tokens(PROMPT, max_tokens=3))


def test_generation_ends_where_the_context_does(model: LanguageModel) -> None:
    assert len(list(model.tokens([1] * 510, max_tokens=50))) <= 3


def test_a_session_forgets_only_what_it_has(model: LanguageModel) -> None:
    session: Session = model.session()
    session.extend(PROMPT)
    session.trim(2)
    assert session.tokens == PROMPT[:2]
    with pytest.raises(OptionError):
        session.trim(3)


@pytest.mark.slow
def test_an_unknown_pre_tokenizer_is_refused_and_tokens_still_work(tmp_path: Path) -> None:
    fields, tensors = decoder("llama", "q8_0", vocabulary=len(TOKENS), layers=1)
    path = tmp_path / "m.gguf"
    path.write_bytes(written({**fields, **tokenizer_fields("other")}, tensors))
    model = LanguageModel(path, cache="off")
    with pytest.raises(UnsupportedError, match="other"):
        list(model.generate("hello"))
    assert len(list(model.tokens(PROMPT, max_tokens=3))) == 3


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, seed=3), Sampling(repetition_penalty=1.3)])
def test_speculation_changes_no_token(model: LanguageModel, sampling: Sampling) -> None:
    prompt = [5, 6, 7, 8, 9, 5, 6, 7]
    plain = list(model.tokens(prompt, max_tokens=24, sampling=sampling))
    assert list(model.tokens(prompt, max_tokens=24, sampling=sampling, speculate=4)) == plain


def test_what_followed_before_is_guessed() -> None:
    assert draft([1, 2, 3, 9, 4, 1, 2, 3], 2) == [9, 4]
    assert draft([1, 2, 9, 1, 2, 8, 1, 2], 4) == [8, 1, 2], "where the ending came last"
    assert draft([1, 2, 3], 4) == draft([1, 1], 0) == draft([], 3) == []


def test_logprobs_are_those_of_the_logits(model: LanguageModel) -> None:
    pieces = list(model.pieces(PROMPT, Request(most=5, logprobs=3)))
    tokens = list(PROMPT)
    for piece in pieces:
        logits = model.session().extend(tokens).astype(np.float64)
        wanted = logits - np.log(np.exp(logits).sum())
        assert piece.token is not None and piece.logprob == pytest.approx(wanted[piece.token], abs=1e-6)
        assert [token for token, _ in piece.top] == np.argsort(-wanted, kind="stable")[:3].tolist()
        assert [p for _, p in piece.top] == pytest.approx(np.sort(wanted)[::-1][:3].tolist(), abs=1e-6)
        tokens.append(piece.token)


def test_likelihoods_of_a_text_are_those_of_its_tokens_one_by_one(model: LanguageModel) -> None:
    ids = [int(i) for i in np.random.default_rng(1).integers(0, len(TOKENS), 150)]
    found, session = model.log_likelihoods(ids), model.session()
    for i in (0, 1, 60, 148):
        session.trim(0)
        logits = session.extend(ids[: i + 1]).astype(np.float64)
        assert found[i] == pytest.approx(logits[ids[i + 1]] - np.log(np.exp(logits).sum()), abs=1e-6)
    assert found.shape == (149,)


def test_pieces_of_a_prompt_come_first_where_it_is_scored(model: LanguageModel) -> None:
    ids = [int(i) for i in np.random.default_rng(2).integers(0, len(TOKENS), 150)]
    plain = list(model.pieces(ids, Request(4, logprobs=2)))
    pieces = list(model.pieces(ids, Request(4, logprobs=2, scores_prompt=True), speculate=2))
    assert [p.token for p in pieces] == [*ids, *[p.token for p in plain]] and pieces[150:] == plain
    assert [p.logprob for p in pieces[:150]] == [None, *model.log_likelihoods(ids)]
    assert all(not p.text and len(p.top) == 2 for p in pieces[1:150])
    alone = list(model.pieces(ids[:1], Request(0, logprobs=0, scores_prompt=True)))
    assert [(p.token, p.end) for p in alone] == [(ids[0], ""), (None, "length")]
    with pytest.raises(OptionError, match="logprobs"):
        Request(scores_prompt=True)


@pytest.mark.slow
def test_an_embedding_is_the_mean_of_the_states(path: Path, model: LanguageModel) -> None:
    found = read_decoder(read_gguf(path))
    of, ids = found.shape, [9, 8, 7, 6]
    graph = cached_decoder(of, found.kinds, seq="s", gives="states")
    state = {f"{s}_cache.{i}": np.zeros((1, of.kv_heads, 4, of.width)) for s in "kv" for i in range(of.layers)}
    given = {"input_ids": np.array([ids]), "positions": np.arange(4), "keys": np.arange(4), **state}
    mean = dovetail.evaluate(graph, given, params=found.params, lift=True)["states"][0].mean(axis=0)
    np.testing.assert_allclose(model.embed(ids), mean / np.linalg.norm(mean), atol=1e-5)


@pytest.mark.slow
def test_a_text_of_a_schema_satisfies_it(model: LanguageModel) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "age": {"type": "integer", "minimum": 7, "maximum": 42},
        },
        "required": ["name", "age"],
    }
    for seed in range(3):
        text = "".join(
            model.generate("hello", max_tokens=80, sampling=Sampling(temperature=1.0, seed=seed), schema=schema)
        )
        said = json.loads(text)
        assert list(said) == ["name", "age"] and len(said["name"]) <= 5 and 7 <= said["age"] <= 42


def test_a_schema_that_cannot_be_met_is_refused_before_anything_runs(model: LanguageModel) -> None:
    with pytest.raises(OptionError, match="no text"):
        model.generate("hello", schema={"type": "integer", "minimum": 3, "maximum": 2})


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "near"), [("f16", 2e-2), ("q8", 0.2)])
def test_a_narrow_cache_is_near_the_wide_one_and_exact_however_it_is_cut(
    path: Path, model: LanguageModel, kind: CacheKind, near: float
) -> None:
    narrow = LanguageModel(path, kv_cache=kind, cache="off")
    ids = [int(i) for i in np.random.default_rng(0).integers(0, len(TOKENS), 40)]
    wanted, found, cut = (m.session() for m in (model, narrow, narrow))
    whole = found.extend(ids)
    assert np.array_equal([cut.extend(ids[:23]), cut.extend(ids[23:])][-1], whole)
    difference = np.abs(whole - wanted.extend(ids)).max()
    assert 0 < difference < near, "it rounds, and not by much"


def test_the_cache_of_fast_mode_is_f16(model: LanguageModel) -> None:
    """Where the machine converts f16; it stays what the caller asks for."""
    fast = "f16" if host_device().has("f16_conversion") else "f32"
    assert model.programs.kind == "f32"
    assert Programs(model.source.decoder, precision="fast").kind == fast
    assert Programs(model.source.decoder, "f32", precision="fast").kind == "f32"
    assert Programs(model.source.decoder, precision="fast", target="cuda").kind == "f32"


def test_an_unknown_kind_of_cache_is_refused(path: Path) -> None:
    with pytest.raises(OptionError, match="q4"):
        LanguageModel(path, kv_cache=cast(Any, "q4"))
