"""Sampling: limits keep the tokens that they should, draws follow the probabilities, and bad numbers are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail.errors import LoadError, OptionError
from dovetail.ir.literal import Array
from dovetail.language.sampling import Sampler, Sampling

LOGITS: Array = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float32))


def drawn(logits: Array = LOGITS, count: int = 400, **how: Any) -> Array:
    sampler = Sampler(Sampling(**dict[str, Any](temperature=1.0, **how)))
    return np.bincount([sampler.next(logits, []) for _ in range(count)], minlength=logits.size) / count


def test_the_likeliest_token_without_a_temperature() -> None:
    assert Sampler(Sampling()).next(LOGITS, []) == 1


@pytest.mark.slow
def test_draws_follow_the_probabilities() -> None:
    np.testing.assert_allclose(drawn(count=4000), np.exp(LOGITS), atol=0.03)


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({"top_k": 2}, {1, 3}),
        ({"top_p": 0.6}, {1, 3}),
        ({"top_p": 0.75}, {1, 3, 4}),
        ({"min_p": 0.3}, {1, 3, 4}),
        ({"top_k": 3, "top_p": 0.8}, {1, 3}),
        ({"top_k": 1}, {1}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
    ],
)
def test_limits_keep_the_likeliest(how: dict[str, Any], kept: set[int]) -> None:
    assert set(np.flatnonzero(drawn(**how)).tolist()) == kept


@pytest.mark.slow
def test_limits_of_a_large_vocabulary_are_those_of_sorting_all() -> None:
    logits = np.random.default_rng(0).normal(size=20_000).astype(np.float32)
    chances = np.exp(logits.astype(np.float64))
    order = np.argsort(-logits, kind="stable")
    kept = order[: 1 + np.count_nonzero(np.cumsum(chances[order]) < 0.5 * chances.sum())]
    found = np.flatnonzero(drawn(logits, 300, top_p=0.5))
    assert np.isin(found, kept).all() and found.size > 200


def test_tokens_that_came_before_are_less_likely() -> None:
    logits = np.array([2.0, 1.9, -1.0], np.float32)
    sampler = Sampler(Sampling(repetition_penalty=1.5))
    assert sampler.next(logits, []) == 0 and sampler.next(logits, [0]) == 1
    assert logits[0] == 2.0, "the caller's logits are as they were"


def test_penalties_count_the_text_and_not_its_prompt() -> None:
    logits = np.array([2.0, 1.9, 1.8, 0.0], np.float32)
    before = [1, 0, 0, 2]  # the first is the prompt
    present, frequent = Sampler(Sampling(presence_penalty=0.5)), Sampler(Sampling(frequency_penalty=0.15))
    assert present.next(logits, before, prompt=1) == 1 and present.next(logits, [0], prompt=1) == 0
    # 2 - 2 · 0.15, 1.9 and 1.8 - 0.15: less often is more likely.
    assert frequent.next(logits, before, prompt=1) == 1
    assert frequent.next(logits, [0, 0, 1, 1, 2]) == 0 and frequent.next(logits, [0, 0, 1, 1, 2, 2, 2, 0]) == 1
    assert Sampler(Sampling(presence_penalty=-3.0)).next(logits, [3]) == 3
    assert logits[0] == 2.0, "the caller's logits are as they were"


def test_a_bias_chooses_and_forbids() -> None:
    assert Sampler(Sampling(bias={0: 100.0})).next(LOGITS, []) == 0
    assert drawn(bias={1: -100.0, 3: -100})[[1, 3]].sum() == 0
    assert Sampler(Sampling(bias={2: 1e300, 1: -1e300})).next(LOGITS, []) == 2


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": -1.0},
        {"presence_penalty": float("nan")},
        {"frequency_penalty": 10**400},
        {"frequency_penalty": "1"},
        {"bias": {-1: 1.0}},
        {"bias": {True: 1.0}},
        {"bias": {1: float("inf")}},
        {"bias": {1: 10**400}},
        {"bias": {"1": 1.0}},
        {"bias": [1.0]},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": 2.0},
        {"repetition_penalty": 0.0},
        {"seed": -1},
        {"temperature": "1"},
        {"temperature": None},
        {"top_k": 1.5},
        {"top_p": True},
        {"seed": 2.0},
    ],
)
def test_numbers_out_of_range_are_refused(how: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        Sampling(**how)
    assert caught.value.hint


@pytest.mark.parametrize("penalty", [1e-300, 1e-40, 1e38, 1e300])
@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-9])
def test_numbers_at_the_ends_of_their_ranges_do_not_overflow(penalty: float, temperature: float) -> None:
    sampler = Sampler(Sampling(temperature, repetition_penalty=penalty))
    for _ in range(20):
        assert sampler.next(np.array([-2.0, 3.0, 1.0, 0.0], np.float32), [0, 1, 3]) == (1 if penalty < 1 else 2)
        assert Sampler(Sampling(temperature)).next(LOGITS, []) == 1


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("how", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}])
def test_logits_that_are_no_numbers_are_one_typed_error(odd: float, how: dict[str, Any]) -> None:
    with pytest.raises(LoadError) as caught:
        Sampler(Sampling(**how)).next(np.full(5, odd, np.float32), [])
    assert caught.value.hint
