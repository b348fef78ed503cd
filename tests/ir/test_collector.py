"""The collector is paused, and back on however the pause ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from dovetail.ir import collector
from dovetail.ir.collector import collector_paused


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


LONG_PAUSES = """
import gc, runpy, sys, weakref

collector = runpy.run_path(sys.argv[1])
walks = []
gc.callbacks.append(lambda phase, details: walks.append(phase))


class Cyclic:
    def __init__(self):
        self.own = self


def long_pause():
    with collector["collector_paused"]():
        made = [[] for _ in range(2 * collector["LONG"])]
        return made, weakref.ref(Cyclic())


walks.clear()
made, cyclic = long_pause()
print(not walks, gc.get_count()[0] < collector["LONG"], cyclic() is not None)
gc.collect()
print(cyclic() is None)
gc.freeze()
frozen = gc.get_freeze_count()
more = long_pause()
print(frozen > 2 * collector["LONG"], gc.get_freeze_count() > frozen // 2)
gc.unfreeze()
walks.clear()
print([bool(walks) for _ in range(collector["WALKED"]) if long_pause()][-1])
"""


def test_what_a_long_pause_made_is_old_without_a_walk_and_its_garbage_is_freed() -> None:
    """In a process of its own: pytest has frozen its objects, and a walk over them takes seconds."""
    call = [sys.executable, "-c", LONG_PAUSES, collector.__file__]
    told = subprocess.run(call, capture_output=True, text=True, check=True).stdout.splitlines()
    unwalked, freed, stays_frozen, walked_at_times = told
    assert unwalked == "True True True"
    assert freed == "True"
    assert stays_frozen == "True True"
    assert walked_at_times == "True"
