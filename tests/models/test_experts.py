"""Experts of a decoder against NumPy in float64, token by token; a token has the same bits in every company."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail import Builder
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.models.decoder_parts import Weights, feed_forward
from dovetail.models.decoder_shape import DecoderShape, DecoderStyle
from dovetail.runtime.program import Program
from tests.block_arrays import floats_of, random_blocks
from tests.targets.cpu.gemm.test_blocks import HAS_DOT, plans

OF = DecoderShape(
    1, 64, 1, 1, 64, 96, 8, 8, experts=6, chosen=2, style=DecoderStyle(has_experts=True), normed_choice=True
)
SIZES = {"up": (6, 96, 64), "gate": (6, 96, 64), "down": (6, 64, 96)}


def made(kind: str, threads: int = 2) -> tuple[Program, dict[str, Array]]:
    """The program of the part, and its weights as floats."""
    rng = np.random.default_rng(0)
    floats: dict[str, Array] = {"ffn.router": rng.normal(size=(6, 64)).astype(np.float32)}
    params = dict(floats)
    for number, (part, (count, *shape)) in enumerate(SIZES.items()):
        name = f"ffn.{part}"
        if kind == "f32":
            params[name] = floats[name] = (rng.normal(size=(count, *shape)) / 8).astype(np.float32)
        else:
            blocks = random_blocks(kind, count * shape[0], shape[1], number)
            floats[name] = floats_of(kind, blocks).reshape(count, *shape)
            params[name] = blocks.reshape(count, shape[0], -1)
    builder = Builder("experts")
    kinds = {} if kind == "f32" else {f"ffn.{part}": kind for part in SIZES}
    x = builder.input("x", f32["b", "t", 64])
    builder.output("y", feed_forward(Weights(builder, kinds), OF, x, "ffn"))
    return dovetail.compile(builder.graph(), threads=threads, cache="off").bind(params), floats


def by_hand(x: Array, w: dict[str, Array]) -> Array:
    """One token after the other."""
    found: list[Array] = []
    for token in x.reshape(-1, 64).astype(np.float64):
        scores = np.exp(w["ffn.router"].astype(np.float64) @ token)
        chosen = np.argsort(-scores)[:2]
        y = np.zeros(64)
        for expert in chosen:
            gate, up = (w[f"ffn.{part}"][expert].astype(np.float64) @ token for part in ("gate", "up"))
            y += scores[expert] / scores[chosen].sum() * (w["ffn.down"][expert] @ (gate / (1 + np.exp(-gate)) * up))
        found.append(y)
    return np.array(found).reshape(x.shape)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["f32", "q8_0", "q4_0"])
def test_a_token_goes_through_its_own_experts(kind: str) -> None:
    program, floats = made(kind)
    x = np.random.default_rng(1).normal(size=(2, 40, 64)).astype(np.float32)
    got = program.run({"x": x})["y"]
    expected = by_hand(x, floats)
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
    alone = [program.run({"x": x[i : i + 1, j : j + 1]})["y"] for i in range(2) for j in (0, 1, 39)]
    assert np.concatenate(alone).tobytes() == got[:, [0, 1, 39]].tobytes(), "alone and in a batch"
    chunk = program.run({"x": x[:1, 7:20]})["y"]
    assert chunk.tobytes() == got[:1, 7:20].tobytes(), "in a chunk"
    assert made(kind, threads=1)[0].run({"x": x})["y"].tobytes() == got.tobytes()
    if HAS_DOT and kind != "f32":
        names, _ = plans(program)
        assert names.count("blocks") == 3
        (stored,) = program.report.weights
        assert stored.count == 3 and stored.read == stored.bytes * 2 // 6, "a token reads the experts that it chooses"
    assert not [k for k in program.report.kernels if k.on_host]
