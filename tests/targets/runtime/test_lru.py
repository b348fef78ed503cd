"""A small cache of what was made last."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dovetail.targets.runtime.building.lru import LRU


def test_made_once_and_dropped_when_old() -> None:
    lru: LRU[str] = LRU(2)
    made: list[str] = []

    def make(name: str) -> str:
        made.append(name)
        return name * 2

    for name in ("a", "b", "a", "c", "a", "b"):
        assert lru.get(name, lambda name=name: make(name)) == name * 2
    assert made == ["a", "b", "c", "b"] and len(lru) == 2


def test_failure_is_tried_again() -> None:
    lru: LRU[int] = LRU(2)

    def fail() -> int:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            lru.get("a", fail)
    assert lru.get("a", lambda: 7) == 7


def test_one_thread_makes_and_others_wait() -> None:
    lru: LRU[int] = LRU(2)
    begun, made = threading.Barrier(4), list[int]()

    def make() -> int:
        made.append(1)
        time.sleep(0.05)  # long enough for the others to come by
        return 5

    def ask() -> int:
        begun.wait()
        return lru.get("a", make)

    with ThreadPoolExecutor(4) as pool:
        assert [f.result() for f in [pool.submit(ask) for _ in range(4)]] == [5] * 4
    assert made == [1]


def test_slow_key_does_not_hold_up_another() -> None:
    lru: LRU[int] = LRU(2)
    inside, go = threading.Event(), threading.Event()

    def slow() -> int:
        inside.set()
        assert go.wait(10)
        return 1

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lru.get, "slow", slow)
        assert inside.wait(10)
        assert lru.get("quick", lambda: 2) == 2
        go.set()
        assert waiting.result() == 1
