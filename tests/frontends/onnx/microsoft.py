"""Single nodes of com.microsoft, with onnxruntime as their judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from dovetail.ir.type import TensorType
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node

MICROSOFT = "com.microsoft"


def ms(description: str, **attributes: Any) -> onnx.NodeProto:
    """A node of that domain."""
    return node(description, domain=MICROSOFT, **attributes)


def alone(
    one: onnx.NodeProto, types: Mapping[str, TensorType], constants: Mapping[str, Array] | None = None, opset: int = 21
) -> onnx.ModelProto:
    """A model of one node."""
    outputs = [o for o in one.output if o]
    return model([one], types, outputs, opset=opset, initializers=constants, domains={MICROSOFT: 1})


def check(
    one: onnx.NodeProto,
    types: Mapping[str, TensorType],
    *feeds: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    opset: int = 21,
    scale: float = 1.0,
) -> None:
    """One compile of a node gives what onnxruntime gives, for each of the feeds."""
    assert_like_onnxruntime(alone(one, types, constants, opset), *feeds, scale=scale)


def run(
    one: onnx.NodeProto,
    types: Mapping[str, TensorType],
    feeds: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    opset: int = 21,
) -> dict[str, Array]:
    """What dovetail makes of a node that onnxruntime does not run on this device."""
    return by_dovetail(alone(one, types, constants, opset), feeds)[0]


class Draw:
    """Random arrays."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.restart()

    def restart(self) -> None:
        """Draw the first numbers again: what a test draws does not depend on the tests that ran before it."""
        self._source = np.random.default_rng(self._seed)

    def floats(self, *shape: int, dtype: Any = np.float32) -> Array:
        return self._source.normal(size=shape).astype(dtype)

    def steps(self, *shape: int, low: float = 0.005) -> Array:
        """Scales: small and above 0."""
        return (np.abs(self._source.normal(size=shape)) * 0.02 + low).astype(np.float32)

    def whole(self, *shape: int, dtype: Any = np.uint8, low: int | None = None, high: int | None = None) -> Array:
        limits = np.iinfo(dtype)
        least, most = limits.min if low is None else low, limits.max if high is None else high
        return self._source.integers(least, most + 1, shape).astype(dtype)

    def weights(self, *shape: int, dtype: Any = np.int8) -> Array:
        """Weights in bytes; signed ones have seven bits.

        On x86 without VNNI, onnxruntime adds two products of an unsigned and a signed byte in 16 bits, which saturate.
        """
        return (
            self.whole(*shape, dtype=dtype, low=-64, high=63) if dtype is np.int8 else self.whole(*shape, dtype=dtype)
        )
