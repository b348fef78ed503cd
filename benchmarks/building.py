"""How long it takes to build a graph and walk over it, and how that grows with its size."""

from __future__ import annotations

import time

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir import leaf


def layers(values: int) -> Graph:
    """A chain of residual layers of four ops each, about this many values in all."""
    x = leaf.input("x", f32["rows", 64])
    w, b = leaf.param("w", f32[64, 64]), leaf.param("b", f32[64])
    for i in range(values // 5):
        x = x + ops.relu(x @ w + b) * (1.0 + i)
    return Graph.of(x)


def measure(values: int) -> float:
    started = time.perf_counter()
    graph = layers(values)
    uses = graph.uses
    seconds = time.perf_counter() - started
    count = graph.count()
    assert uses.count(graph.outputs["y"]) == 1
    print(f"{count:8,} values   {seconds:6.2f} s   {seconds / count * 1e6:5.1f} µs each")
    return seconds / count


def main() -> None:
    small, large = measure(10_000), measure(100_000)
    print(f"a value costs {large / small:.2f} times as much in the large graph")


if __name__ == "__main__":
    main()
