"""Where the arrays of a trainer are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import dovetail
from dovetail import Builder, Program
from dovetail.dtypes import f32
from dovetail.ir.literal import Array
from dovetail.targets.runtime.arrays.device_array import DeviceArray
from dovetail.train.state import State


def test_no_large_array_is_copied_to_find_that_they_stay_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder("sums")
    b.output("y", b.input("table", f32[64, 8]) + b.input("bias", f32[8]))
    program = dovetail.compile(b.graph())
    asked: list[str] = []
    ask = Program.to_device

    def noted(self: Program, inputs: Mapping[str, Array]) -> dict[str, DeviceArray]:
        asked.extend(inputs)
        return ask(self, inputs)

    monkeypatch.setattr(Program, "to_device", noted)
    arrays = {"table": np.ones((64, 8), np.float32), "bias": np.zeros(8, np.float32)}
    state = State(arrays, [program])
    assert asked == ["bias"]
    assert not state.on_device
    assert list(state.arrays) == ["table", "bias"]
    assert all(state.arrays[name] is array for name, array in arrays.items())
