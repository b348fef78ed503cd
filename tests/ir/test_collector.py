"""The collector is paused, and back on however the pause ends."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from dovetail.ir import collector
from dovetail.ir.collector import LONG, collector_paused


def test_it_is_back_on_after_an_error() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError), collector_paused():
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()


def test_pauses_nest_and_overlap() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector_paused():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with collector_paused():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled(), "the other pause still lasts"
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_who_had_switched_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


class Cyclic:
    """Holds itself: only the collector frees it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def _unwalked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The next pause does not end with a walk; the objects that pytest froze are thawed meanwhile."""
    monkeypatch.setattr(collector, "_ended", 0)
    gc.unfreeze()
    yield
    gc.freeze()


def _long_pause() -> tuple[list[object], weakref.ref[Cyclic]]:
    with collector_paused():
        made: list[object] = [[] for _ in range(2 * LONG)]
        return made, weakref.ref(Cyclic())


@pytest.mark.usefixtures("_unwalked")
def test_what_a_long_pause_made_is_old_without_a_walk_and_its_garbage_is_freed() -> None:
    walks: list[str] = []

    def told(phase: str, details: dict[str, int]) -> None:
        walks.append(phase)

    gc.callbacks.append(told)
    try:
        made, cyclic = _long_pause()
        assert gc.get_count()[0] < LONG and not walks
    finally:
        gc.callbacks.remove(told)
    assert cyclic() is not None and len(made) == 2 * LONG
    gc.collect()
    assert cyclic() is None


@pytest.mark.usefixtures("_unwalked")
def test_what_the_user_has_frozen_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    assert frozen > LONG and len(_long_pause()[0]) == 2 * LONG
    assert gc.get_freeze_count() > frozen // 2
