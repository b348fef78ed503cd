"""Every trap test fails once its defence is gone: none of them passes for want of anything to find."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from dovetail.errors import DovetailError
from dovetail.testing import forget
from tests.traps.defences import DEFENCES
from tests.traps.removal import Defence, trap_of
from tests.traps.test_guards import BLOCK

TRAPS = range(1, 58)

Failed = (AssertionError, DovetailError, pytest.fail.Exception)
"""How a trap test fails: an assertion, a typed error, or an error that was awaited and did not come."""


def trap_tests() -> set[str]:
    """The names of the trap tests that stand beside this file."""
    found: set[str] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        module = import_module(f"tests.traps.{path.stem}")
        found |= {name for name in vars(module) if name.startswith("test_trap_")}
    return found


@pytest.fixture(autouse=True, scope="module")
def _young() -> None:  # pyright: ignore[reportUnusedFunction]
    """Only what is made here is looked at when values are given up; the rest of the process is large."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """What was inferred without a defence is not remembered."""
    yield
    forget(*BLOCK)


_passed: set[Callable[[], None]] = set()
"""The trap tests that passed in this process while all defences stood."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("defence", DEFENCES, ids=str)
def test_a_trap_test_fails_without_its_defence(defence: Defence, monkeypatch: pytest.MonkeyPatch) -> None:
    # First with it, once for all defences of a test: then what fails is the defence, and patterns are traced.
    if defence.test not in _passed:
        defence.test()
        _passed.add(defence.test)
        forget(*BLOCK)
    with monkeypatch.context() as patch:
        defence.remove(patch)
        with pytest.raises(Failed):
            defence.test()


def test_every_trap_has_a_test() -> None:
    assert {trap_of(name) for name in trap_tests()} >= set(TRAPS)


def test_every_trap_test_has_a_defence() -> None:
    assert {d.test.__name__ for d in DEFENCES} == trap_tests()


def test_every_trap_test_tells_its_story() -> None:
    for defence in DEFENCES:
        assert len((defence.test.__doc__ or "").split()) >= 20, f"{defence.test.__name__} does not say what goes wrong"
