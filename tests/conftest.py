"""What every test shares: how many random examples, kept object code, tiers, and comparison with generated text."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

from dovetail.targets.cpu import jit
from tests.golden import Golden
from tests.kept_code import Keeper, keeper_of
from tests.skips import unexpected
from tests.tiers import QUICK, STANDARD, THOROUGH, first_of_each, serial_last
from tests.turns import Turns

ROOT = Path(__file__).resolve().parent.parent

# Tests and the processes that they start leave the user's own cache alone; tests of the cache name a folder.
os.environ["DOVETAIL_CACHE"] = "off"
# Prices in reports are those of no machine in particular.
os.environ["DOVETAIL_MACHINE"] = "built-in"
# JAX counts its devices when it starts: tests and pages of the docs have eight simulated ones on the CPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

# Seconds per example depend on the machine, so that a deadline would only make failures that are none.
_COMMON = settings(deadline=None, suppress_health_check=(HealthCheck.too_slow,), print_blob=True)
# Shrinking a graph takes minutes: `make test-deep` does it.
_QUICK_PHASES = (Phase.explicit, Phase.generate)
settings.register_profile("all", _COMMON, max_examples=15, derandomize=True, database=None, phases=_QUICK_PHASES)
settings.register_profile("few", settings.get_profile("all"), max_examples=10)
settings.register_profile("deep", _COMMON, max_examples=2000)
settings.load_profile("all")


_TIERS = {
    "quick": "one case of each test, and none that takes long",
    "standard": "up to three cases of each test, one of those that take long",
    "thorough": "up to ten cases of each test, one of those that take long",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="rewrite generated text instead of comparing with it")
    for tier, told in _TIERS.items():
        parser.addoption(f"--{tier}", action="store_true", help=told)


def pytest_configure(config: pytest.Config) -> None:
    """LLVM is asked once for each text; DOVETAIL_TEST_CACHE names the folder, or `off`."""
    gc.disable()  # until all tests are collected, of which nothing is garbage
    keeper = keeper_of(os.environ.get("DOVETAIL_TEST_CACHE", ""), ROOT)
    config.stash[_KEEPER] = keeper
    if (config.getoption("--quick") or config.getoption("--standard")) and not config.getoption("--hypothesis-profile"):
        settings.load_profile("few")
    if keeper is not None:
        jit.emit = keeper.emit
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.pluginmanager.register(Turns(Path(tempfile.gettempdir()) / f"dovetail-tests-{worker['testrunuid']}"))


_KEEPER = pytest.StashKey[Keeper | None]()


def pytest_unconfigure(config: pytest.Config) -> None:
    keeper = config.stash.get(_KEEPER, None)
    if keeper is not None:
        jit.emit = keeper.compiler


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The quick tier does not even make the cases that it leaves out."""
    if metafunc.config.getoption("--quick"):
        metafunc.parametrize = first_of_each(metafunc.parametrize)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Rewriting runs only the tests that own generated text; tiers run a part of all."""
    kept = list(items)
    if config.getoption("--golden"):
        kept = [item for item in kept if "golden" in getattr(item, "fixturenames", ())]
    for option, tier in (("--quick", QUICK), ("--standard", STANDARD), ("--thorough", THOROUGH)):
        if config.getoption(option):
            kept = tier.of(kept)
    stay = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in stay])
    items[:] = serial_last(kept)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    return _judged((yield))


def _judged(report: Any) -> Any:
    """In CI on Linux, which runs every test that can run, a skip for a reason that is not listed fails."""
    fault = unexpected(report) if os.environ.get("CI") == "true" and sys.platform == "linux" else ""
    if fault:
        report.outcome, report.longrepr = "failed", fault
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    """What exists before the first test stays: the collector of garbage need not walk over it again and again."""
    session.config.stash[_STREAMS] = list(_random_streams())
    gc.collect()
    gc.freeze()
    gc.enable()
    # It comes after ten times as many objects as usual: 1 % of the time in place of 4 %, and what tests make is small.
    gc.set_threshold(7_000, 10, 10)


def _random_streams() -> Iterator[tuple[np.random.Generator, Any]]:
    """Yield the random streams that test modules hold, and where each starts."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tests."):
            for value in list(vars(module).values()):
                if isinstance(value, np.random.Generator):
                    yield value, value.bit_generator.state


_STREAMS = pytest.StashKey[list[tuple[np.random.Generator, Any]]]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Random streams of modules start anew for each test: its data do not depend on the tests before it."""
    for stream, start in item.config.stash[_STREAMS]:
        stream.bit_generator.state = start


_FILES_PER_FREEZE = 5


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What files leave in caches grows to a million objects, over which each test that collects garbage would walk."""
    if nextitem is None or nextitem.path == item.path:
        return
    ended = item.config.stash[_ENDED] = item.config.stash.get(_ENDED, 0) + 1
    if ended % _FILES_PER_FREEZE == 0:
        gc.collect()
        gc.freeze()


_ENDED = pytest.StashKey[int]()
"""How many files have ended in this process."""


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares with text in the tree, or rewrites it under `make golden`."""
    return Golden(Path(str(request.config.rootpath)), rewrite=bool(request.config.getoption("--golden")))


@pytest.fixture
def compiled_anew(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM compiles everything that this test asks for."""
    keeper = request.config.stash[_KEEPER]
    if keeper is not None:
        monkeypatch.setattr(jit, "emit", keeper.compiler)
