"""What every test shares: how many random examples, and comparison with generated text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.golden import Golden

# The user's own cache is no business of tests, nor of the processes that they start; those of the cache name a folder.
os.environ["DOVETAIL_CACHE"] = os.environ.get("DOVETAIL_TEST_CACHE", "off")

# Seconds per example depend on the machine, so that a deadline would only make failures that are none.
_COMMON = settings(deadline=None, suppress_health_check=(HealthCheck.too_slow,), print_blob=True)
# Shrinking a graph takes minutes: `make test-deep` does it.
_QUICK_PHASES = (Phase.explicit, Phase.generate)
settings.register_profile("quick", _COMMON, max_examples=30, derandomize=True, database=None, phases=_QUICK_PHASES)
settings.register_profile("deep", _COMMON, max_examples=2000)
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="rewrite generated text instead of comparing with it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Rewriting runs only the tests that own generated text."""
    if config.getoption("--golden"):
        owners = [item for item in items if "golden" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in owners])
        items[:] = owners


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares with text in the tree, or rewrites it under `make golden`."""
    return Golden(Path(str(request.config.rootpath)), rewrite=bool(request.config.getoption("--golden")))
