"""Builds a linear layer and shows its values with their types."""

from __future__ import annotations

import dovetail
from dovetail import f32, ops


def linear_layer() -> dovetail.Graph:
    """relu(x @ w + b) for any number of rows."""
    builder = dovetail.Builder("linear")
    x = builder.input("x", f32["rows", 384])
    w = builder.param("w", f32[384, 1536])
    b = builder.param("b", f32[1536])
    builder.output("y", ops.relu(x @ w + b))
    return builder.graph()


def main() -> None:
    graph = linear_layer()
    print(f"dovetail {dovetail.__version__}")
    print(f"{graph.name}: {graph.count()} values")
    for value in graph.values:
        print(f"  {value.op.name:8} {value.type}")


if __name__ == "__main__":
    main()
