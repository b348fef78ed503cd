"""What cannot fit in memory is refused with the numbers, before it is tried."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import ops
from dovetail.errors import BindError, OptionError
from dovetail.ir.dtype import f32
from dovetail.targets.reference.interpreter import evaluate
from dovetail.targets.runtime.arrays.memory_limit import ALWAYS_FITS, available, check_fits


def spread(rows: int) -> dovetail.Graph:
    """A large tensor that is made from a small input."""
    builder = dovetail.Builder("spread")
    x = builder.input("x", f32[1])
    builder.output("z", x + ops.iota(size=rows, dtype=f32))
    return builder.graph()


ONE = {"x": np.ones(1, np.float32)}


def test_the_machine_has_some_memory() -> None:
    assert available() > ALWAYS_FITS
    check_fits(ALWAYS_FITS, "this")
    with pytest.raises(BindError, match=r"this takes .* bytes, and .* are left on this machine"):
        check_fits(2**60, "this")


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_run_that_cannot_fit_is_refused(target: str) -> None:
    program = dovetail.compile(spread(2**42), target=target)
    with pytest.raises(BindError, match="bytes"):
        program.run(ONE)


def test_the_interpreter_refuses_it_too() -> None:
    with pytest.raises(BindError, match="bytes"):
        evaluate(spread(2**42), ONE)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_limit_of_ones_own(target: str) -> None:
    graph = spread(10_000)
    assert dovetail.compile(graph, target=target).run(ONE)["z"].shape == (10_000,)
    with pytest.raises(BindError, match="20,000 are allowed"):
        dovetail.compile(graph, target=target, memory_limit=20_000).run(ONE)


def test_a_limit_is_a_number_of_bytes() -> None:
    wrongs: tuple[Any, ...] = (-1, True, "1 GB")
    for wrong in wrongs:
        with pytest.raises(OptionError, match="memory_limit"):
            dovetail.compile(spread(4), memory_limit=wrong)


def test_the_limit_of_the_address_space_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    asked = resource.getrlimit

    def limited(kind: int) -> tuple[int, int]:
        return (1 << 62, 1 << 62) if kind == resource.RLIMIT_AS else asked(kind)

    free = available()
    monkeypatch.setattr(resource, "getrlimit", limited)
    assert abs(available() - free) < 1 << 30
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1 << 20, 1 << 20))  # pyright: ignore
    assert available() == 0
