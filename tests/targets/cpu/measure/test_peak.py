"""The limits of the machine: what is best so far never falls, and threads have cores of their own."""

from __future__ import annotations

import os
import threading

import pytest

from dovetail.errors import OptionError
from dovetail.targets.cpu.measure import peak as limits
from dovetail.targets.cpu.measure.peak import Limits, Meter
from dovetail.targets.cpu.measure.threads import pin

pytestmark = pytest.mark.serial  # it measures the machine


@pytest.mark.slow
def test_the_best_so_far_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_buffer_bytes", lambda: 1 << 20)
    meter = Meter(2)
    first = meter.measure()
    second = meter.measure()
    assert second.threads == 2
    assert 0 < first.flops <= second.flops and 0 < first.bytes <= second.bytes
    assert 0 < meter.last.flops <= second.flops and 0 < meter.last.bytes <= second.bytes


def test_a_machine_without_dot_products_of_bytes_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_buffer_bytes", lambda: 1 << 20)
    monkeypatch.setattr(limits, "_dot_tile", lambda: None)
    kept = limits._code, limits._entry  # pyright: ignore[reportPrivateUsage]
    for cached in kept:
        cached.cache_clear()
    found = Meter(1).measure()
    for cached in kept:
        cached.cache_clear()
    assert found.flops > 0 and found.bytes > 0 and found.int8 == 0


def test_the_slower_of_computing_and_reading_decides() -> None:
    assert Limits(1, 10.0, 2.0).seconds(20.0, 2.0) == 2.0
    assert Limits(1, 10.0, 2.0).seconds(20.0, 8.0) == 4.0


def test_no_threads_are_refused() -> None:
    with pytest.raises(OptionError, match="0 threads"):
        Meter(0)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not tell cores")
def test_a_thread_is_pinned_alone() -> None:
    before = os.sched_getaffinity(0)
    found: list[set[int]] = []

    def work(number: int) -> None:
        pin(number)
        found.append(os.sched_getaffinity(0))

    for number in range(2):
        thread = threading.Thread(target=work, args=(number,))
        thread.start()
        thread.join()
    assert found == [{sorted(before)[number % len(before)]} for number in range(2)]
    assert os.sched_getaffinity(0) == before
