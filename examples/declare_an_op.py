"""A fused op of your own in ten lines; fusing, unfusing, reports, rules, laws and its page follow from them."""

from __future__ import annotations

import numpy as np

import dovetail
from dovetail import Graph, Value, fused_op, library, ops
from dovetail.dtypes import f32
from dovetail.inspect import fuse, page, rules, unfuse
from dovetail.testing import check_op


# This is all: the ten lines that declare it. It is made of two others, which are found first.
@fused_op(shapes="x[*, n] z[*, n] gain[n]")
def gated_norm(x: Value, z: Value, gain: Value, *, eps: float) -> Value:
    """The norm of x times the silu of z, as state space models end their blocks: one pass over the rows."""
    return library.rms_norm(x * library.silu(z), gain, eps=eps)


@gated_norm.requires(reason="x is {x.type} and its gate is {z.type}", hint="give both the same shape")
def gate_has_the_shape_of_x(x: Value, z: Value) -> bool:
    return x.shape == z.shape


PARTS = (library.silu, library.rms_norm)


def written_out(gate_shape: tuple[int, ...]) -> Graph:
    """A model that spells gate and norm out in ten ops, and knows nothing of the declaration."""
    builder = dovetail.Builder("mixer")
    x, z = builder.input("x", f32[8, 64]), builder.input("z", f32[gate_shape])
    gain = builder.param("gain", f32[64])
    gated = x * (z * ops.sigmoid(z))
    builder.output("y", gated / ops.sqrt(ops.reduce_mean(gated * gated, axes=(-1,)) + 1e-5) * gain)
    return builder.graph()


def title(text: str) -> None:
    print(f"\n--- {text}")


def main() -> None:
    title("it fuses in a model that was written without it")
    program = dovetail.compile(written_out((8, 64)), ops=[gated_norm], require=["gated_norm"])
    print(program.report)

    title("a model where it does not fit says which guard refused, what it found, and what to do")
    refused = dovetail.compile(written_out((64,)), ops=[gated_norm], without=["fuse_epilogues"])
    (missed,) = [m for m in refused.report.missed if m.rule == "gated_norm"]
    print(f"{missed.node}: {missed.reason}: {missed.message}\nhint: {missed.hint}")

    title("unfusing gives back the very same value, not merely an equal one")
    plain = dovetail.graphs.canonicalize(written_out((8, 64)))
    fused = fuse(plain, [*PARTS, gated_norm]).graph
    print(f"fused:   {' '.join(v.op.name for v in fused.values)}")
    print(f"unfused: {' '.join(v.op.name for v in unfuse(fused).values)}")
    assert unfuse(fused).outputs["y"] is plain.outputs["y"]

    title("it runs, and its numbers are those of NumPy")
    rng = np.random.default_rng(0)
    x, z, gain = (rng.normal(size=s).astype(np.float32) for s in ((8, 64), (8, 64), (64,)))
    y = program.bind({"gain": gain})(x=x, z=z)["y"]
    gated = x.astype(np.float64) * z / (1 + np.exp(-z))
    error = np.abs(y - gated / np.sqrt(np.mean(gated**2, axis=-1, keepdims=True) + 1e-5) * gain).max()
    print(f"largest difference: {error:.1e}")
    assert error < 1e-5

    title("its rules for an e-graph, the guard as a condition")
    for rule in rules([gated_norm]):
        print(rule)

    title("the laws that every declared op keeps, checked for this one")
    check_op(gated_norm)
    print("meaning, recognition, round trip, operand order, inner outputs, guards: all hold")

    title("its page in the catalogue")
    print(page(gated_norm))


if __name__ == "__main__":
    main()
