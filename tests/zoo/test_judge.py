"""Our error beside a peer's, and the inputs that both get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from zoo.inputs import page, picture, sound, strokes, tokens
from zoo.judge import FLOOR, error, verdicts
from zoo.models import models

X = np.array([1.0, -4.0])


def test_errors_are_relative_to_the_largest_of_all_runs() -> None:
    assert error([X, X], [X, X]) == 0
    assert error([X + 1, X], [X, 2 * X]) == pytest.approx(4 / 8)
    assert error([X], [np.zeros(2)]) == 4
    assert error([X[:1]], [X]) == error([X * np.nan], [X]) == float("inf")


def test_twice_the_peers_error_is_the_limit() -> None:
    wanted = [{"y": X}]

    def holds(ours: float, theirs: float) -> bool:
        (found,) = verdicts([{"y": X * (1 + ours)}], [{"y": X * (1 + theirs)}], wanted, 1e-3)
        return found.holds

    assert holds(1.9e-5, 1e-5) and not holds(2.1e-5, 1e-5)
    assert holds(FLOOR / 2, 0) and not holds(FLOOR * 2, 0)
    assert not holds(0, 1e-2), "a peer that is so far away means another model"


def test_inputs_are_the_same_in_every_run_and_in_range() -> None:
    for made in (picture(1, 20, 30), strokes(1, 16, 40), page(1, 60, 40, 10)):
        assert made.dtype == np.float32 and made.ndim == 3 and made.min() >= 0 and made.max() <= 1
    assert np.array_equal(picture(1, 20, 30), picture(1, 20, 30))
    assert not np.array_equal(picture(1, 20, 30), picture(2, 20, 30))
    assert np.abs(sound(1, 160, 16000)).max() < 1
    words = tokens(1, (5, 3), 30522)
    assert words["attention_mask"].sum() == 8 and words["input_ids"][1, 2] == 102


def test_every_model_has_inputs_and_a_name_of_its_own() -> None:
    listed = list(models())
    assert len({m.name for m in listed}) == len(listed) >= 78
    assert all(feed and all(a.size for a in feed.values()) for m in listed for feed in m.feeds)


def test_one_ill_conditioned_run_of_many_is_chance_and_a_constant_factor_is_not() -> None:
    rng = np.random.default_rng(0)
    wanted = [{"y": rng.normal(size=8)} for _ in range(12)]

    def off(by: list[float]) -> list[dict[str, NDArray[Any]]]:
        return [{"y": run["y"] + np.abs(run["y"]).max() * error} for run, error in zip(wanted, by, strict=True)]

    theirs = off([1e-5] * 12)
    (chance,) = verdicts(off([1e-5] * 11 + [1e-4]), theirs, wanted, 1e-3)
    assert chance.doubtful and chance.holds
    (worse,) = verdicts(off([3e-5] * 12), theirs, wanted, 1e-3)
    assert worse.doubtful and not worse.holds
    (broken,) = verdicts(off([1e-5] * 11 + [1e-1]), theirs, wanted, 1e-3)
    assert not broken.holds
    (few,) = verdicts(off([1e-5] * 11 + [1e-4])[-3:], theirs[-3:], wanted[-3:], 1e-3)
    assert not few.holds
