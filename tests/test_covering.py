"""Covering arrays have every combination, in few cases."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.covering import covering

AXES = ("abc", (False, True), range(4), "xy")


@pytest.mark.parametrize(("strength", "most"), [(1, 4), (2, 16), (3, 30), (4, 48)])
def test_every_combination_of_some_axes_occurs(strength: int, most: int) -> None:
    cases = covering(*AXES, strength=strength)
    for places in combinations(range(len(AXES)), strength):
        met = {tuple(case[at] for at in places) for case in cases}
        assert met == set(product(*(AXES[at] for at in places)))
    assert len(cases) == len(set(cases)) <= most
