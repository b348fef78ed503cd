"""Our error beside a peer's, and the inputs that both get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from zoo.inputs import page, picture, sound, strokes, tokens, varied
from zoo.judge import CHANCE_OF_LARGEST, MOST, MOST_RUNS, Verdict, error, unit_of, verdicts
from zoo.models import models

X = np.array([1.0, -4.0])
UNIT = float(np.finfo(np.float32).eps)


def test_errors_are_relative_to_the_largest_of_all_runs() -> None:
    assert error([X, X], [X, X]) == 0
    assert error([X + 1, X], [X, 2 * X]) == pytest.approx(4 / 8)
    assert error([X], [np.zeros(2)]) == 4
    assert error([X[:1]], [X]) == error([X * np.nan], [X]) == float("inf")


def test_twice_the_peers_error_is_the_limit() -> None:
    wanted = [{"y": X.astype(np.float32)}]

    def verdict(ours: float, theirs: float) -> Verdict:
        mine, peer = ([{"y": (X * (1 + off)).astype(np.float64)}] for off in (ours, theirs))
        (found,) = verdicts(mine, peer, wanted, 1e-3)
        return replace(found, unit=UNIT)

    assert verdict(1.9e-5, 1e-5).holds and not verdict(2.1e-5, 1e-5).holds
    assert verdict(UNIT / 2, 0).holds and not verdict(UNIT * 2, 0).holds
    assert not verdict(0, 1e-2).holds, "a peer that is so far away means another model"
    assert not verdict(1e-2, 1e-2).holds


def test_inputs_are_the_same_in_every_run_and_in_range() -> None:
    for made in (picture(1, 20, 30), strokes(1, 16, 40), page(1, 60, 40, 10)):
        assert made.dtype == np.float32 and made.ndim == 3 and made.min() >= 0 and made.max() <= 1
    assert np.array_equal(picture(1, 20, 30), picture(1, 20, 30))
    assert not np.array_equal(picture(1, 20, 30), picture(2, 20, 30))
    assert np.abs(sound(1, 160, 16000)).max() < 1
    words = tokens(1, (5, 3), 30522)
    assert words["attention_mask"].sum() == 8 and words["input_ids"][1, 2] == 102


@pytest.mark.exhaustive
def test_every_model_has_inputs_and_a_name_of_its_own() -> None:
    listed = list(models())
    assert len({m.name for m in listed}) == len(listed) >= 78
    assert all(feed and all(a.size for a in feed.values()) for m in listed for feed in m.feeds)


def _off(wanted: list[dict[str, NDArray[Any]]], by: NDArray[np.float64]) -> list[dict[str, NDArray[Any]]]:
    most = max(float(np.abs(run["y"]).max()) for run in wanted)
    return [{"y": run["y"] + most * error} for run, error in zip(wanted, by, strict=True)]


def test_a_constant_factor_and_one_bad_run_are_found_and_chance_is_not() -> None:
    rng = np.random.default_rng(0)
    wanted = [{"y": rng.normal(size=16).astype(np.float32)} for _ in range(12)]
    noise = 1e-5 * rng.normal(size=(2, 12, 16))
    theirs = _off(wanted, noise[1])

    def verdict(by: NDArray[np.float64]) -> Verdict:
        (found,) = verdicts(_off(wanted, by), theirs, wanted, 1e-1)
        return found

    assert verdict(noise[0]).holds
    assert not verdict(3 * noise[0]).near, "the typical error"
    bad = noise[0].copy()
    bad[7, 3] = 1e-3
    assert verdict(bad).typical <= verdict(bad).limit and not verdict(bad).near, "the largest error"


@pytest.mark.parametrize("numbers", [1, 4])
def test_what_chance_adds_to_the_errors_of_equally_accurate_runtimes(numbers: int) -> None:
    """999 of 1000 samples stay below the limits, whatever the inputs do to errors."""
    rng = np.random.default_rng(1)
    grow = np.exp(rng.normal(size=(20000, MOST_RUNS, 1)))
    ours, theirs = (grow * np.abs(rng.normal(size=(20000, MOST_RUNS, numbers))) for _ in range(2))
    typical = np.log(np.square(ours).mean(2) / np.square(theirs).mean(2)).mean(1) / 2
    assert np.mean(np.exp(typical) > MOST) < 1e-3
    assert np.mean(ours.max((1, 2)) / theirs.max((1, 2)) > CHANCE_OF_LARGEST) < 1e-3
    assert np.mean(np.exp(typical) * 3 > MOST) > 0.9, "three times the error is found"


def test_the_unit_is_of_the_dtype_of_the_output() -> None:
    for dtype, unit in ((np.float16, 2**-10), (np.float32, 2**-23), (np.int64, 2**-23)):
        assert unit_of(np.zeros(1, dtype)) == unit


def test_feeds_without_axes_stay_arrays() -> None:
    """onnxruntime takes no scalars of NumPy."""
    (again,) = varied([{"x": np.zeros((2, 3), np.float32), "least": np.asarray(46.0, np.float32)}], 1)
    assert {name: (type(x), x.dtype, x.shape) for name, x in again.items()} == {
        "x": (np.ndarray, np.float32, (2, 3)),
        "least": (np.ndarray, np.float32, ()),
    }
