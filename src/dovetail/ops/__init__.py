"""Primitives by family. `ALL` is every one of them; each is one entry in its family's file."""

from dovetail.ir.value import Value
from dovetail.ops import (
    activations,
    arithmetic,
    contraction,
    control,
    convolution,
    cumulative,
    detection,
    elementwise,
    generate,
    groups,
    indexing,
    linear_algebra,
    matrix,
    movement,
    ordering,
    pooling,
    quantised,
    reduction,
    reshaping,
    spectral,
    tracing,
)
from dovetail.ops import resize as resizing
from dovetail.ops.activations import *  # noqa: F403
from dovetail.ops.arithmetic import *  # noqa: F403
from dovetail.ops.contraction import *  # noqa: F403
from dovetail.ops.control import *  # noqa: F403
from dovetail.ops.convolution import *  # noqa: F403
from dovetail.ops.cumulative import *  # noqa: F403
from dovetail.ops.detection import *  # noqa: F403
from dovetail.ops.elementwise import *  # noqa: F403
from dovetail.ops.generate import *  # noqa: F403
from dovetail.ops.groups import *  # noqa: F403
from dovetail.ops.indexing import *  # noqa: F403
from dovetail.ops.linear_algebra import *  # noqa: F403
from dovetail.ops.matrix import *  # noqa: F403
from dovetail.ops.movement import *  # noqa: F403
from dovetail.ops.operators import PrimitiveOperators
from dovetail.ops.ordering import *  # noqa: F403
from dovetail.ops.pooling import *  # noqa: F403
from dovetail.ops.quantised import *  # noqa: F403
from dovetail.ops.reduction import *  # noqa: F403
from dovetail.ops.reshaping import *  # noqa: F403
from dovetail.ops.resize import *  # noqa: F403
from dovetail.ops.spectral import *  # noqa: F403
from dovetail.ops.tracing import *  # noqa: F403

Value.operators = PrimitiveOperators()

ALL = (
    *elementwise.FAMILY,
    *contraction.FAMILY,
    *groups.FAMILY,
    *reduction.FAMILY,
    *movement.FAMILY,
    *control.FAMILY,
    *convolution.FAMILY,
    *pooling.FAMILY,
    *resizing.FAMILY,
    *cumulative.FAMILY,
    *detection.FAMILY,
    *spectral.FAMILY,
    *generate.FAMILY,
    *indexing.FAMILY,
    *linear_algebra.FAMILY,
    *matrix.FAMILY,
    *ordering.FAMILY,
    *quantised.FAMILY,
)

__all__: list[str] = ["ALL"]
__all__ += activations.__all__
__all__ += arithmetic.__all__
__all__ += contraction.__all__
__all__ += control.__all__
__all__ += convolution.__all__
__all__ += cumulative.__all__
__all__ += detection.__all__
__all__ += elementwise.__all__
__all__ += generate.__all__
__all__ += groups.__all__
__all__ += indexing.__all__
__all__ += linear_algebra.__all__
__all__ += matrix.__all__
__all__ += movement.__all__
__all__ += ordering.__all__
__all__ += pooling.__all__
__all__ += quantised.__all__
__all__ += reduction.__all__
__all__ += reshaping.__all__
__all__ += resizing.__all__
__all__ += spectral.__all__
__all__ += tracing.__all__


def __dir__() -> list[str]:
    return sorted(__all__)
