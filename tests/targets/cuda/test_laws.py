"""The law of meaning as a card judges it, of a few ops on the simulated device."""

from __future__ import annotations

import pytest

from dovetail import library
from dovetail.declare import FusedOp
from tests.targets.cuda.laws import check_meaning
from tests.targets.cuda.simulated import SimulatedDriver, target_of


@pytest.mark.slow
@pytest.mark.parametrize("op", [library.gelu, library.rms_norm, library.softmax], ids=lambda op: op.name)
def test_a_fused_op_and_its_spelling_mean_the_same(op: FusedOp[...]) -> None:
    check_meaning(op, target_of(SimulatedDriver()))
