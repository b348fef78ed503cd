"""Turns of tests in parallel processes: ordinary tests run side by side, a serial one runs alone.

A test is serial (`@pytest.mark.serial`) if load disturbs it or it disturbs others: it measures, starts pools of several
threads or drives a browser.
"""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from pathlib import Path

import pytest


class Turns:
    """File locks that all processes of a run share."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.door = (folder / "door").open("w")
        self.room = (folder / "room").open("w")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        alone = item.get_closest_marker("serial") is not None
        # A serial test waits for the room while it holds the door: no other test enters before it.
        fcntl.flock(self.door, fcntl.LOCK_EX)
        fcntl.flock(self.room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self.door, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(self.room, fcntl.LOCK_UN)

    def pytest_unconfigure(self) -> None:
        self.door.close()
        self.room.close()
