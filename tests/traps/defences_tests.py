"""What traps 56 and 57 are defended by, taken away."""

from __future__ import annotations

import numpy as np

from dovetail import Graph
from dovetail.ir.dtype import f64
from dovetail.ir.leaf import input
from dovetail.library.silu import silu
from dovetail.targets.reference.interpreter import evaluate
from tests.library.judge import Array, one
from tests.traps import test_tests as tests
from tests.traps.removal import Defence, constantly, replaced


def silu_of_the_system(x: Array) -> Array:
    """The formula asks the system under test."""
    value = one(silu.body(input("x", f64[np.shape(x)])))
    return evaluate(Graph.of(value), {"x": np.asarray(x, np.float64)})["y"]


DEFENCES = (
    Defence(
        tests.test_trap_56_every_assertion_can_fail,
        "what is always true is an assertion",
        replaced("tests.traps.idle._always_true", constantly(False)),
    ),
    Defence(
        tests.test_trap_56_every_assertion_can_fail,
        "a failure may be caught",
        replaced("tests.traps.idle._swallows", constantly(False)),
    ),
    Defence(
        tests.test_trap_56_every_assertion_can_fail,
        "a test needs no check",
        replaced("tests.traps.idle._checks", constantly(True)),
    ),
    Defence(
        tests.test_trap_57_numbers_are_judged_by_something_else,
        "numbers are not compared",
        replaced("numpy.testing.assert_allclose", constantly(None)),
    ),
    Defence(
        tests.test_trap_57_numbers_are_judged_by_something_else,
        "a formula asks the system",
        replaced("tests.library.judge.silu", silu_of_the_system),
    ),
)
