"""The activations that kernels take in their epilogues, by name."""

from __future__ import annotations

from typing import Literal

from dovetail import ops
from dovetail.ir.value import Value
from dovetail.library.gelu import gelu
from dovetail.library.hard_sigmoid import hard_sigmoid
from dovetail.library.hard_swish import hard_swish
from dovetail.library.silu import silu

Activation = Literal[
    "none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "relu6", "hard_sigmoid", "hard_swish"
]  # fmt: skip
Gate = Literal["silu", "gelu", "gelu_tanh", "relu"]
"""What gates a product: swiglu, geglu in both forms, reglu."""


def activation(act: Activation, y: Value) -> Value:
    """The activation by name."""
    match act:
        case "none":
            return y
        case "relu":
            return ops.relu(y)
        case "gelu":
            return gelu(y)
        case "gelu_tanh":
            return gelu(y, form="tanh")
        case "silu":
            return silu(y)
        case "tanh":
            return ops.tanh(y)
        case "sigmoid":
            return ops.sigmoid(y)
        case "relu6":
            return ops.relu6(y)
        case "hard_sigmoid":
            return hard_sigmoid(y)
        case "hard_swish":
            return hard_swish(y)
