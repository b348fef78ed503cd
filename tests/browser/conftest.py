"""A browser for all tests that need one; where there is none they are skipped with the reason."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Chromium, find_chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip("there is no Chromium: make browser installs it")
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        pytest.skip("Chromium reserves more address space than the limit of this shell (ulimit -v) allows")
    with Chromium(program, tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
