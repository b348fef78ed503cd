"""Operators of com.microsoft that optimised and quantised models use."""

from dovetail.frontends.onnx.rules.microsoft import (
    activations,
    attention,
    fused,
    grouped,
    norms,
    packed,
    qlinear,
    quantised,
    recurrent,
)

RULES = (
    *activations.RULES,
    *attention.RULES,
    *fused.RULES,
    *grouped.RULES,
    *norms.RULES,
    *packed.RULES,
    *qlinear.RULES,
    *quantised.RULES,
    *recurrent.RULES,
)
