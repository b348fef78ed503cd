"""Which kernels of GPUs take elementwise steps into themselves, and on which conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail import library
from dovetail.ir.value import Value
from dovetail.passes.claims import Anchor, Condition
from dovetail.plan.alias import locate
from dovetail.plan.plan import Step
from dovetail.targets.gpu.images import CONVOLVED

if TYPE_CHECKING:
    from dovetail.kernels.choice import StepProblem

NORMS = tuple(op.name for op in (library.layer_norm, library.rms_norm, library.group_norm, library.group_norm_silu))


def _problem(value: Value) -> StepProblem[None]:
    """A step that computes a value of dense operands; kernels are imported when there is one."""
    from dovetail.kernels.choice import StepProblem
    from dovetail.kernels.spec import TensorLocations
    from dovetail.targets.gpu.loops import LOOPS

    dense = TensorLocations(lambda v: locate(v, {}), (), target=LOOPS)
    return StepProblem(Step(value.op.name, value, "run"), dense, None)


def _follow_a_convolution(value: Value) -> bool:
    from dovetail.kernels.choice import Refused
    from dovetail.kernels.problems.windows import find_windowed

    return not isinstance(find_windowed(_problem(value)), Refused)


def _go_along_the_rows(value: Value) -> bool:
    from dovetail.kernels.choice import Offer
    from dovetail.kernels.families.rows import offer_rows

    return isinstance(offer_rows(_problem(value)), Offer)


def _widens_keys(value: Value) -> bool:
    from dovetail.kernels.gpu.attention.row import widens_keys

    return widens_keys(value, _problem(value).locations) is not None


CONVOLUTION = Anchor(
    epilogue=(
        Condition(
            "steps_follow_a_convolution",
            _follow_a_convolution,
            "a step makes a tensor of another shape, has no compiled form, or reads through a view of no strides",
        ),
    )
)
NORM = Anchor(
    epilogue=(
        Condition(
            "steps_go_along_the_rows",
            _go_along_the_rows,
            "the steps and the norm do not go through the same rows, or a step is not compiled",
        ),
    )
)
ATTENTION = Anchor(
    prologue=(
        Condition(
            "steps_widen_keys",
            _widens_keys,
            "attention of one query takes casts of keys and values from f16, and no other steps before it",
        ),
    )
)
ANCHORS: Mapping[str, Anchor] = {
    **dict.fromkeys(CONVOLVED, CONVOLUTION),
    **dict.fromkeys(NORMS, NORM),
    library.attention.name: ATTENTION,
}
"""By the name of an op."""

__all__ = ["ANCHORS"]
