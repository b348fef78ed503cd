"""Turns: everyone has as many, nobody always follows the same one, and a failure is a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dovetail.bench.measure import LEAST_ROUNDS, deviation, take_turns
from dovetail.bench.process import RefusedError
from dovetail.bench.result import Timed
from dovetail.errors import CheckError


class _Peer:
    def __init__(self, name: str, log: list[str], fails_at: int = -1) -> None:
        self.name, self.log, self.fails_at, self.turns = name, log, fails_at, 0

    def start(self) -> Mapping[str, Any]:
        return {}

    def turn(self, seconds: float) -> Mapping[str, Any]:
        self.log.append(self.name)
        self.turns += 1
        if self.turns == self.fails_at:
            raise RefusedError("out of memory")
        return {"runs": [0.1, 0.2]}


class _Machine(_Peer):
    def turn(self, seconds: float) -> Mapping[str, Any]:
        super().turn(seconds)
        return {
            "last": {"flops": float(self.turns), "bytes": 1.0},
            "best": {"flops": 100.0 + self.turns, "bytes": 1.0},
        }


def test_the_order_moves_on_and_all_have_as_many_turns() -> None:
    log: list[str] = []
    ready = [(Timed(name, 0.0), _Peer(name, log)) for name in "abc"]
    shown, best = take_turns(ready, _Machine("machine", log), 0.0, {})
    assert [peak.flops for peak in shown] == [*range(1, LEAST_ROUNDS + 1)], "each round shows its own"
    assert best.flops == 100.0 + LEAST_ROUNDS
    assert log[:12] == ["a", "b", "c", "machine", "b", "c", "a", "machine", "c", "a", "b", "machine"]
    assert {len(timed.runs) for timed, _ in ready} == {2 * LEAST_ROUNDS}


def test_a_peer_that_fails_is_left_out_and_ours_is_an_error() -> None:
    log: list[str] = []
    refused: dict[str, str] = {}
    ready = [(Timed(name, 0.0), _Peer(name, log, fails_at=2 if name == "b" else -1)) for name in "ab"]
    take_turns(ready, _Machine("machine", log), 0.0, refused)
    assert refused == {"b": "out of memory"} and log.count("b") == 2
    with pytest.raises(CheckError, match="out of memory"):
        take_turns([(Timed("dovetail", 0.0), _Peer("dovetail", log, fails_at=1))], _Machine("machine", log), 0.0, {})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([1.0, -4.0], 0.0),
        ([1.0, -3.0], 0.25),
        ([np.nan, -4.0], np.inf),
        ([1.0], np.inf),
    ],
)
def test_how_far_results_lie_apart(found: list[float], expected: float) -> None:
    ours = {"0": np.array([1.0, -4.0], np.float32)}
    assert deviation(ours, {"0": np.array(found, np.float32)}) == expected


def test_the_same_infinity_is_no_difference() -> None:
    array = np.array([-np.inf, np.nan, 2.0], np.float32)
    assert deviation({"0": array}, {"0": array.copy()}) == 0.0
    assert deviation({"0": array}, {}) == np.inf
    assert deviation({"0": np.zeros(0)}, {"0": np.zeros(0)}) == 0.0
