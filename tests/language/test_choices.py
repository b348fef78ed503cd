"""The server's answers beyond one text: choices and their seeds, penalties, biases, echoes, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dovetail.language import LanguageModel
from dovetail.language.sampling import Sampling
from dovetail.language.server import Server
from dovetail.language.slots import Slots
from tests.language.test_server import MESSAGES, call, model, served, server

__all__ = ["model", "server"]


@pytest.mark.exhaustive
def test_choices_have_seeds_that_follow_each_other(model: LanguageModel, server: Server) -> None:
    how: dict[str, Any] = {"max_tokens": 8, "temperature": 1.5, "seed": 2**64 - 1}
    prompts = ["hello", "world"]
    wanted = [
        "".join(model.generate(prompt, max_tokens=8, sampling=Sampling(1.5, seed=seed)))
        for prompt in prompts
        for seed in (2**64 - 1, 0, 1)
    ]
    status, found, _ = call(server, "/v1/completions", {"prompt": prompts, "n": 3, **how})
    assert status == 200 and [c["text"] for c in found["choices"]] == wanted and len(set(wanted)) > 3
    assert [c["index"] for c in found["choices"]] == list(range(6))
    read = sum(len(model.tokenizer.encode(p)) for p in prompts)
    assert found["usage"]["prompt_tokens"] == read, "choices share their prompt"
    status, parts, _ = call(server, "/v1/completions", {"prompt": prompts, "n": 3, "stream": True, **how})
    texts = [""] * 6
    for part in parts:
        texts[part["choices"][0]["index"]] += part["choices"][0]["text"]
    assert texts == wanted
    status, said, _ = call(server, "/v1/chat/completions", {"messages": MESSAGES, "n": 2, "temperature": 0})
    one, other = (c["message"]["content"] for c in said["choices"])
    assert status == 200 and one == other


def test_a_prompt_of_several_choices_is_read_once(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    extend = Slots.extend

    def counting(slots: Slots, slot: int, tokens: Sequence[int], wanted: int = 1) -> Any:
        read.append(len(tokens))
        return extend(slots, slot, tokens, wanted)

    monkeypatch.setattr(Slots, "extend", counting)
    prompt = [5 + i % 90 for i in range(200)]
    with served(model) as server:
        how = {"prompt": prompt, "n": 3, "max_tokens": 4, "temperature": 0}
        status, found, _ = call(server, "/v1/completions", how)
    assert status == 200 and sum(read) < 1.2 * len(prompt)
    assert {c["text"] for c in found["choices"]} == {"".join(model.generate(prompt, max_tokens=4))}


def test_penalties_and_biases_are_those_of_sampling(model: LanguageModel, server: Server) -> None:
    plain = "".join(model.generate("hello", max_tokens=12))
    for fields, sampling in (
        ({"presence_penalty": 2.0, "frequency_penalty": 1}, Sampling(presence_penalty=2.0, frequency_penalty=1.0)),
        ({"logit_bias": {"9": 100}}, Sampling(bias={9: 100.0})),
    ):
        asked = {"prompt": "hello", "max_tokens": 12, "temperature": 0, **fields}
        text = call(server, "/v1/completions", asked)[1]["choices"][0]["text"]
        assert text == "".join(model.generate("hello", max_tokens=12, sampling=sampling)) != plain


def test_an_echo_comes_before_the_text(model: LanguageModel, server: Server) -> None:
    how = {"max_tokens": 4, "temperature": 0, "echo": True}
    ids = [5, 6, 7, 8]
    text = "".join(model.generate("hello", max_tokens=4))
    _, found, _ = call(server, "/v1/completions", {"prompt": "hello", **how})
    assert found["choices"][0]["text"] == "hello" + text
    _, parts, _ = call(server, "/v1/completions", {"prompt": "hello", "stream": True, **how})
    assert "".join(p["choices"][0]["text"] for p in parts) == "hello" + text
    _, found, _ = call(server, "/v1/completions", {"prompt": ids, **how})
    assert found["choices"][0]["text"] == model.tokenizer.decode(ids) + "".join(model.generate(ids, max_tokens=4))


@pytest.mark.parametrize("count", [1, 2, 200])
def test_an_echo_with_log_probabilities_scores_the_prompt(model: LanguageModel, server: Server, count: int) -> None:
    ids = np.random.default_rng(count).integers(5, 60, count).tolist()
    how = {"prompt": ids, "temperature": 0, "logprobs": 2}
    # What a slot holds from the time before says nothing of how likely it was.
    for _ in range(2):
        _, found, _ = call(server, "/v1/completions", {**how, "max_tokens": 0, "echo": True})
        choice, said = found["choices"][0], found["choices"][0]["logprobs"]
        assert choice["finish_reason"] == "length" and choice["text"] == model.tokenizer.decode(ids)
        assert found["usage"] == {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count}
        assert said["token_logprobs"] == [None, *model.log_likelihoods(ids).tolist()]
        # Tokens that are parts of characters share a name.
        assert said["top_logprobs"][0] is None and all(1 <= len(top) <= 2 for top in said["top_logprobs"][1:])
        assert len(said["tokens"]) == len(said["text_offset"]) == count
    after = call(server, "/v1/completions", {**how, "max_tokens": 3})[1]["choices"][0]["logprobs"]["token_logprobs"]
    _, parts, _ = call(server, "/v1/completions", {**how, "max_tokens": 3, "echo": True, "stream": True})
    told = [p["choices"][0]["logprobs"]["token_logprobs"] for p in parts if p["choices"][0]["logprobs"]]
    assert [value for values in told for value in values] == [None, *model.log_likelihoods(ids).tolist(), *after]


def test_tokens_have_offsets_in_the_text(server: Server) -> None:
    asked = {"prompt": "hello", "max_tokens": 12, "temperature": 1.5, "seed": 3, "logprobs": 1}
    choice = call(server, "/v1/completions", asked)[1]["choices"][0]
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert len(offsets) == len(tokens) and offsets[0] == 0 and offsets == sorted(offsets)
    whole = [(t, at) for t, at in zip(tokens, offsets, strict=True) if "\ufffd" not in t]
    assert len(whole) > 3 and all(choice["text"][at:].startswith(t) for t, at in whole)
    _, parts, _ = call(server, "/v1/completions", {**asked, "stream": True})
    told = [p["choices"][0]["logprobs"]["text_offset"] for p in parts if p["choices"][0]["logprobs"]]
    assert np.concatenate(told).tolist() == offsets
