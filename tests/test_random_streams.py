"""A module's random stream starts anew for each test, so that tests pass or fail alike in any order and choice."""

from __future__ import annotations

import numpy as np
import pytest

STREAM = np.random.default_rng(1)
FIRST = np.random.default_rng(1).random()


@pytest.mark.parametrize("turn", ["first", "second"])
def test_each_test_draws_from_the_start(turn: str) -> None:
    assert STREAM.random() == FIRST, turn
