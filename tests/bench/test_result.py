"""What is said of a result."""

from __future__ import annotations

import json

from dovetail.bench.result import Floor, Peak, Result, Timed


def _result(*peers: tuple[str, float]) -> Result:
    timed = tuple(Timed(name, 0.5, runs=[s - 0.4, s, s, s + 1]) for name, s in peers)
    shown = (Peak(8.0, 10.0), Peak(7.0, 8.0), Peak(9.0, 20.0))
    return Result("w", 2, timed, Floor(8.0, 1.0, shown, Peak(10.0, 20.0)), {})


def test_the_ratio_is_the_best_peer_over_ours() -> None:
    result = _result(("dovetail", 2.0), ("slow", 6.0), ("quick", 3.0))
    assert result.line == "bench w threads=2 ratio=1.50 best_peer=quick ms=2e+03 limit=0.50"
    assert result.floor.bound == "multiply-adds"


def test_medians_are_compared_with_medians_and_the_best_with_the_best() -> None:
    result = _result(("dovetail", 2.0))
    assert result.limit == 8.0 / 8.0 / 2.0
    assert result.limit_at_best == 8.0 / 10.0 / 1.6


def test_alone_there_is_no_ratio() -> None:
    result = _result(("dovetail", 2.0))
    assert result.line == "bench w threads=2 ratio=none best_peer=none ms=2e+03 limit=0.50"
    assert json.loads(json.dumps(result.as_dict(), allow_nan=False))["ratio"] is None


def test_the_floor_is_the_slower_of_computing_and_reading() -> None:
    floor = Floor(8.0, 30.0, (Peak(8.0, 10.0),), Peak(9.0, 11.0))
    assert floor.seconds(floor.usual) == 3.0
    assert floor.bound == "bandwidth"


def test_a_module_is_compared_with_its_file_whichever_of_them_is_asked() -> None:
    asked_file = _result(("dovetail", 3.0), ("dovetail-module", 2.0), ("torch", 4.0))
    asked_module = _result(("dovetail", 2.0), ("dovetail-onnx", 3.0), ("torch", 4.0))
    for result in (asked_file, asked_module):
        assert result.module_ratio == 1.5 and result.line.endswith(" module=1.50")
        assert result.best is not None and result.best.peer == "torch", "dovetail is no peer of itself"
