"""The collector is paused, and back on however the pause ends."""

from __future__ import annotations

import gc
import threading

import pytest

from dovetail import process
from dovetail.ir.collector import collector_paused


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(process, "_is_own", True)


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


def test_the_process_of_a_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_is_own", False)
    with collector_paused():
        assert gc.isenabled()
