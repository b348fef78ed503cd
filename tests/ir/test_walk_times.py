"""Long graphs: time grows with the number of values, and no faster."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from dovetail import ops
from dovetail.ir.graph import Graph
from dovetail.ir.serial import from_buffer, to_bytes
from dovetail.ir.text import parse_graph, print_graph
from dovetail.ir.verify import verify
from tests.ir.test_walk import chain

pytestmark = pytest.mark.serial  # it compares times


def seconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("work", ["print", "parse", "verify", "serial"])
def test_time_grows_with_the_number_of_values(work: str) -> None:
    def run(length: int) -> float:
        graph = Graph.of(chain(length))
        text, content = print_graph(graph), to_bytes(graph)
        works: dict[str, Callable[[], object]] = {
            "print": lambda: print_graph(graph),
            "parse": lambda: parse_graph(text, ops.ALL),
            "verify": lambda: verify(graph),
            "serial": lambda: from_buffer(content, ops.ALL),
        }
        return seconds(works[work])

    # Ten times the values may take up to thirty times as long; quadratic work would take a hundred.
    assert run(10_000) < 30 * run(1_000)
