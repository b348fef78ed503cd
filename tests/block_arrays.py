"""Random blocks of every format, with scales of a model's size; what they mean, and products with them."""

from __future__ import annotations

import numpy as np

import dovetail
from dovetail import Value, library, ops
from dovetail.ir.dtype import u8
from dovetail.ir.literal import Array
from dovetail.library.block_formats import FORMATS

_SCALES = {
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "q4_1": (0, 2),
    "q5_1": (0, 2),
}
"""Where a block has its floats, if not at its start alone."""
_LARGEST = {
    "q8_0": 100,
    "int8_low": 100,
    "iq4_nl": 100,
    "q2_k": 45,
    "q3_k": 100,
    "q4_k": 900,
    "q5_k": 1800,
    "q6_k": 3000,
    "iq4_xs": 3000,
}
"""About how large codes and the integers of their scales become together; others stay below 16."""


def random_blocks(name: str, rows: int, columns: int, seed: int = 0) -> Array:
    """A matrix in blocks: about as large as weights are."""
    rng = np.random.default_rng(seed)
    of = FORMATS[name]
    found = rng.integers(0, 256, (rows, columns // of.elements, of.bytes), dtype=np.uint8)
    if name == "mxfp4":
        found[..., 0] = rng.integers(115, 122, found.shape[:2])
    elif name.startswith("int"):
        heads = 2 if name.endswith("_low") else 1
        scales = (rng.normal(size=(*found.shape[:2], heads)) / _LARGEST.get(name, 16) / 4).astype(np.float32)
        found[..., : 4 * heads] = scales.view(np.uint8)
    else:
        for at in _SCALES.get(name, (0,)):
            scale = rng.normal(size=(*found.shape[:2], 1)) / _LARGEST.get(name, 16) / 4
            found[..., at : at + 2] = scale.astype(np.float16).view(np.uint8)
    return found.reshape(rows, -1)


def floats_of(name: str, blocks: Array) -> Array:
    """What blocks mean, by the reference in float64."""
    builder = dovetail.Builder("floats")
    builder.output("y", library.dequantise_blocks(builder.param("w", u8[blocks.shape]), format=name))  # pyright: ignore[reportArgumentType]
    return dovetail.evaluate(builder.graph(), {}, params={"w": blocks}, lift=True)["y"]


def block_weights(builder: dovetail.Builder, name: str, kind: str, blocks: Array) -> Value:
    """The parameter of a graph with these blocks, as the right operand of a product."""
    stored = builder.param(name, u8[blocks.shape])
    return ops.permute(library.dequantise_blocks(stored, format=kind), order=(-1, -2))  # pyright: ignore[reportArgumentType]


def assert_near(found: Array, wanted: Array) -> None:
    """Every element is as near to float64 as sums in f32 are."""
    assert np.abs(found - wanted).max() < 2e-6 * np.abs(wanted).max()


__all__ = ["assert_near", "block_weights", "floats_of", "random_blocks"]
