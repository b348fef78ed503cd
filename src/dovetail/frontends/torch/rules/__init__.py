"""The rules of ATen's operators, by family. `ALL` is every one of them."""

from dovetail.frontends.torch.rules import (
    activations,
    attention,
    contraction,
    decompositions,
    elementwise,
    experts,
    generation,
    indexing,
    linear_algebra,
    logic,
    movement,
    normalisation,
    padding,
    pooling,
    recurrent,
    reduction,
    resizing,
    spectral,
)

ALL = (
    *elementwise.RULES,
    *logic.RULES,
    *movement.RULES,
    *padding.RULES,
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
    *experts.RULES,
    *linear_algebra.RULES,
    *decompositions.RULES,
)
BY_NAME = {rule.op: rule for rule in ALL}
