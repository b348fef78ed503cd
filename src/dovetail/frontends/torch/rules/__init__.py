"""The rules of ATen's operators, by family. `ALL` is every one of them."""

from dovetail.frontends.torch.rules import (
    activations,
    attention,
    contraction,
    elementwise,
    generation,
    indexing,
    movement,
    normalisation,
    pooling,
    recurrent,
    reduction,
    resizing,
    spectral,
)

ALL = (
    *elementwise.RULES,
    *movement.RULES,
    *generation.RULES,
    *contraction.RULES,
    *normalisation.RULES,
    *attention.RULES,
    *activations.RULES,
    *reduction.RULES,
    *indexing.RULES,
    *pooling.RULES,
    *resizing.RULES,
    *recurrent.RULES,
    *spectral.RULES,
)
BY_NAME = {rule.op: rule for rule in ALL}
