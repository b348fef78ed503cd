"""A fused op of your own in ten lines; fusing, unfusing, reports, rules, laws and its page follow from them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import dovetail
from dovetail import Graph, Value, f32, fused_op, ops
from dovetail.derive import laws
from dovetail.derive.catalogue import page
from dovetail.derive.fuse import fuse
from dovetail.derive.rules import rules
from dovetail.derive.unfuse import unfuse
from dovetail.ir.literal import Array
from dovetail.passes.canonicalize import canonicalize
from dovetail.targets.reference.interpreter import evaluate


# This is all: the ten lines that declare it.
@fused_op(shapes="x[*, m, k] w[k, n] alpha[n]")
def snake(x: Value, w: Value, alpha: Value) -> Value:
    """y + sin²(alpha y) / alpha for y = x @ w: the activation of audio generators in the epilogue of a matmul."""
    y = x @ w
    wave = ops.sin(y * alpha)
    return y + wave * wave / alpha


@snake.requires(reason="alpha is {alpha.type}, and the weights are {w.type}", hint="pass one alpha a column: [n]")
def alpha_is_one_for_each_column(w: Value, alpha: Value) -> bool:
    return alpha.shape == w.shape[-1:]


def written_out(alpha_shape: tuple[int, ...]) -> Graph:
    """A model that spells the activation out and knows nothing of the declaration."""
    builder = dovetail.Builder("generator")
    x = builder.input("x", f32[8, 64])
    w, alpha = builder.param("w", f32[64, 64]), builder.param("alpha", f32[alpha_shape])
    hidden = x @ w
    angle = ops.sin(hidden * alpha)
    builder.output("y", hidden + angle * angle / alpha)
    return builder.graph()


def title(text: str) -> None:
    print(f"\n--- {text}")


def main() -> None:
    title("it fuses in a model that was written without it")
    program = dovetail.compile(written_out((64,)), ops=[snake], require=["snake"])
    print(program.report)

    title("a model where it does not fit says which guard refused, what it found, and what to do")
    refused = dovetail.compile(written_out((8, 64)), ops=[snake])
    (missed,) = [m for m in refused.report.missed if m.rule == "snake"]
    print(f"{missed.node}: {missed.reason}: {missed.message}\nhint: {missed.hint}")

    title("unfusing gives back the very same value, not merely an equal one")
    plain = canonicalize(written_out((64,)))
    fused = fuse(plain, [snake]).graph
    print(f"fused:   {' '.join(v.op.name for v in fused.values)}")
    print(f"unfused: {' '.join(v.op.name for v in unfuse(fused).values)}")
    assert unfuse(fused).outputs["y"] is plain.outputs["y"]

    title("it runs, and its numbers are those of NumPy")
    rng = np.random.default_rng(0)
    x, w, alpha = (rng.normal(size=s).astype(np.float32) for s in ((8, 64), (64, 64), (64,)))
    y = program.bind({"w": w, "alpha": alpha})(x=x)["y"]
    h = x.astype(np.float64) @ w
    error = np.abs(y - (h + np.sin(alpha * h) ** 2 / alpha)).max()
    print(f"largest difference: {error:.1e}")
    assert error < 1e-2  # sin(alpha * h) / alpha magnifies the rounding of h where alpha is small

    title("its rules for an e-graph, the guard as a condition")
    for rule in rules([snake]):
        print(rule)

    title("the laws that every declared op keeps, checked for this one")
    check_laws()

    title("its page in the catalogue")
    print(page(snake))


def check_laws() -> None:
    def lifted(graph: Graph, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        return evaluate(graph, feeds, lift=True)

    for variant in snake.patterns:
        laws.check_meaning(snake, variant, 1, lifted)
        laws.check_recognition(snake, variant, 2, canonicalize, parts=())
        laws.check_round_trip(snake, variant, 3, canonicalize)
        laws.check_operand_order(snake, variant, 4, canonicalize)
        laws.check_inner_outputs(snake, variant, 5, lifted, canonicalize)
    for guard in snake.guards:
        laws.check_guard(snake, guard, canonicalize)
    print("meaning, recognition, round trip, operand order, inner outputs, guards: all hold")


if __name__ == "__main__":
    main()
