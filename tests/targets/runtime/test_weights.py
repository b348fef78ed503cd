"""Arrays by name that can be let go and made again."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail.targets.runtime.building.weights import Weights, cell_of, is_constant

Array = NDArray[Any]


def frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array


@pytest.mark.slow
def test_an_array_that_is_let_go_is_the_same_while_somebody_holds_it_and_equal_afterwards() -> None:
    array = np.arange(6.0)
    weights = Weights({"w": array})
    made: list[int] = []

    def again() -> Array:
        made.append(1)
        return np.arange(6.0)

    weights.cells["w"].let_go(again)
    assert weights["w"] is array and not made
    del array
    gc.collect()
    found = weights["w"]
    assert found.tolist() == list(range(6)) and not found.flags.writeable
    assert weights["w"] is found and len(made) == 1
    del found
    assert weights["w"].tolist() == list(range(6)) and len(made) == 2


def test_mappings_made_from_another_share_what_is_let_go() -> None:
    weights = Weights({"w": np.ones(3), "v": np.zeros(2)})
    for other in (Weights(weights), weights.joined({"v": np.ones(2)}), weights.only({"w": 0})):
        assert other.cells["w"] is weights.cells["w"]
    assert weights["v"].tolist() == [0, 0] and weights.joined({"v": np.ones(2)})["v"].tolist() == [1, 1]
    assert list(weights) == ["w", "v"] and len(weights) == 2 and "u" not in weights
    assert [weights.cells["w"].shape, weights.cells["w"].ndim] == [(3,), 1]


def test_only_what_nobody_can_change_has_one_cell_everywhere() -> None:
    array = frozen(np.ones(3))
    assert cell_of(array) is cell_of(array)
    free = np.ones(3)
    assert cell_of(free) is not cell_of(free)


def test_a_cell_is_not_taken_for_another_array_in_the_same_place() -> None:
    for number in range(100):
        cell = cell_of(frozen(np.full(3, number)))
        assert cell.array().tolist() == [number] * 3


def mapped(path: Path, access: int) -> Array:
    path.write_bytes(bytes(64))
    with open(path, "r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=access), np.float32)


@pytest.mark.parametrize(
    ("kind", "constant"),
    [
        ("own", False),
        ("frozen", True),
        ("view of own", False),
        ("frozen view of own", False),
        ("view of frozen", True),
        ("bytes", True),
        ("bytearray", False),
        ("mapped", True),
        ("mapped to write", False),
    ],
)
def test_who_can_write_to_an_array(tmp_path: Path, kind: str, constant: bool) -> None:
    made: dict[str, Any] = {
        "own": lambda: np.ones(4),
        "frozen": lambda: frozen(np.ones(4)),
        "view of own": lambda: np.ones(4)[1:],
        "frozen view of own": lambda: frozen(np.ones(4)[1:]),
        "view of frozen": lambda: frozen(np.ones(4))[1:],
        "bytes": lambda: np.frombuffer(bytes(16), np.float32),
        "bytearray": lambda: np.frombuffer(bytearray(16), np.float32),
        "mapped": lambda: mapped(tmp_path / "a", mmap.ACCESS_READ),
        "mapped to write": lambda: mapped(tmp_path / "a", mmap.ACCESS_WRITE),
    }
    assert is_constant(made[kind]()) is constant
