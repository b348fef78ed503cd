"""Kernels of a program are compiled in threads: large ones first, results in order, the first error raised."""

from __future__ import annotations

from threading import Barrier

import pytest

from dovetail.targets.cuda.code import code


def test_large_items_start_first_and_results_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "MOST_THREADS", 2)
    monkeypatch.setattr(code.os, "cpu_count", lambda: 2)
    started, both = list[int](), Barrier(2)

    def work(item: int) -> int:
        started.append(item)
        both.wait(10)  # two threads are here at once
        return -item

    items = [3, 9, 1, 7]
    assert code.in_threads(work, items, lambda item: item) == [-item for item in items]
    assert {*started[:2]} == {9, 7} and {*started[2:]} == {3, 1}


@pytest.mark.slow
def test_the_first_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code.os, "cpu_count", lambda: 4)

    def work(item: int) -> int:
        raise ValueError(item)

    with pytest.raises(ValueError):
        code.in_threads(work, range(8))
    assert code.in_threads(abs, [-1]) == [1]
