"""Traps 56 and 57: tests that pass whatever the system does. All are read, and some are run on a broken system."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import pytest
from pytest import MonkeyPatch

from dovetail import Value
from dovetail.ops.primitive import Primitive
from tests.library.judge import Array
from tests.traps import idle

TESTS = Path(__file__).resolve().parent.parent
RAISING = ("verify", "verify_plan", "run_page")
"""Functions of the project that raise where something is wrong: to call one is to check."""

IDLE = (
    "assert True",
    "assert 1, 'a message'",
    "assert not False",
    "assert found == wanted or True",
    "assert (found == wanted, 'a message')",
    "assert [found]",
    "assert (x > 0 for x in found)",
    "assert lambda: found",
    "assert found == found",
    "assert found.shape <= found.shape",
    "np.testing.assert_allclose(got['y'], got['y'])",
    "near(wanted, wanted)",
    "try:\n    assert found == wanted\nexcept AssertionError:\n    pass",
    "try:\n    np.testing.assert_array_equal(a, b)\nexcept (ValueError, Exception):\n    found = None",
    "try:\n    assert found\nexcept:\n    pass",
    "with suppress(AssertionError):\n    assert found == wanted",
    "def test_nothing():\n    compile(graph).run(feeds)",
    "def test_helper():\n    show(3)\ndef show(x):\n    print(x)",
    "def test_early():\n    assert run()\n    return\n    assert found",
    "if False:\n    assert found == wanted",
)
"""Lines that look like checks and are none."""

SOUND = (
    "assert found == wanted, 'a message'",
    "assert not found",
    "assert mark(one) == mark(one)",
    "assert False, 'not reached'",
    "np.testing.assert_allclose(run(first), run(second))",
    "try:\n    value = load()\nexcept LoadError:\n    pass\nassert value",
    "try:\n    assert found\nexcept AssertionError as error:\n    raise ValueError from error",
    "with suppress(OSError):\n    assert found == wanted",
    "def test_raises():\n    with pytest.raises(ValueError):\n        run()",
    "def test_helper():\n    same(3)\ndef same(x):\n    deeper(x)\ndef deeper(x):\n    assert x == 3",
)
"""Lines that check."""


def trees() -> dict[str, ast.Module]:
    """Every file of tests, parsed."""
    files = sorted(TESTS.rglob("*.py"))
    return {str(path.relative_to(TESTS)): ast.parse(path.read_text(encoding="utf-8")) for path in files}


@cache
def found_faults() -> list[str]:
    """The faults of all tests."""
    parsed = trees()
    helpers = idle.checkers(parsed.values(), RAISING)
    found = [f"{path}:{f.line} {f.what}" for path, tree in parsed.items() for f in idle.faults(tree, helpers)]
    # Trees are given up: a collection of garbage takes a second to walk over them.
    idle.looked_at.cache_clear()
    return found


@pytest.mark.heavy
def test_trap_56_every_assertion_can_fail() -> None:
    """An assertion on a tuple, an `or True`, a failure that is caught: the test is green for years and says nothing.

    No file of tests has such a line, and no test is without a check of its own or in what it calls.
    """
    for snippet in IDLE:
        assert idle.faults(ast.parse(snippet)), f"not found out: {snippet}"
    for snippet in SOUND:
        assert not idle.faults(ast.parse(snippet)), f"wrongly blamed: {snippet}"
    assert not found_faults(), "\n".join(found_faults())


@contextmanager
def broken_meanings() -> Generator[None]:
    """Every primitive computes something else when it is run: what is made of floats is off by one."""
    interpreter = resolve_name("dovetail.targets.runtime.calls.interpreter._Interpreter")
    compute = interpreter.compute

    def off_by_one(self: Any, value: Value, operands: Any, scope: Any) -> Any:
        result: Array | tuple[Array, ...] = compute(self, value, operands, scope)
        if not isinstance(value.op, Primitive):
            return result
        return tuple(map(_raised, result)) if isinstance(result, tuple) else _raised(result)

    with MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "compute", off_by_one)
        patch.setattr("dovetail.targets.cpu.backend.make_job", _no_kernel)
        yield


def _no_kernel(*given: object) -> None:
    """Every step by its meaning."""


def _raised(array: Array) -> Array:
    return array + array.dtype.type(1) if array.dtype.kind in "fc" else array


def modules() -> list[ModuleType]:
    """The tests that judge numbers by formulas of their own: of the library, of the first traps, and the smallest."""
    files = [*(TESTS / "library").glob("test_*.py"), *(TESTS / "traps").glob("test_*.py"), TESTS / "test_tiny.py"]
    own = Path(__file__).name
    names = sorted(".".join(p.relative_to(TESTS.parent).with_suffix("").parts) for p in files if p.name != own)
    return [import_module(name) for name in names]


def compares_numbers(test: Callable[..., object]) -> bool:
    called = [node.func for node in ast.walk(ast.parse(inspect.getsource(test))) if isinstance(node, ast.Call)]
    names = {f.id if isinstance(f, ast.Name) else f.attr if isinstance(f, ast.Attribute) else "" for f in called}
    return not names.isdisjoint({"near", "assert_close", "assert_allclose", "assert_array_equal"})


def numeric_tests() -> list[Callable[[], object]]:
    """Tests without parameters that compare numbers."""
    return [
        test
        for module in modules()
        for name, test in vars(module).items()
        if name.startswith("test_") and inspect.isfunction(test) and test.__module__ == module.__name__
        if not inspect.signature(test).parameters and compares_numbers(test)
    ]


MOST_TOLD = 3
"""How many tests that agree with a broken system are looked for: one is too many."""


@pytest.mark.exhaustive
def test_trap_57_numbers_are_judged_by_something_else() -> None:
    """A test that computes what it expects with the system under test agrees with it, right or wrong.

    With every primitive off by one, each test of numbers fails: its judge does not ask the system.
    """
    tests = numeric_tests()
    assert len(tests) > 100
    agreeing: list[str] = []
    for test in tests:
        with broken_meanings():
            try:
                test()
            except AssertionError:
                continue
        agreeing.append(f"{test.__module__}.{test.__name__}")
        if len(agreeing) == MOST_TOLD:
            break
    assert not agreeing, "\n".join(agreeing)
