"""Primitives by family. `ALL` is every one of them; each is one entry in its family's file."""

from dovetail.ir.value import Value
from dovetail.ops import contraction, elementwise, movement, reduction
from dovetail.ops.contraction import *  # noqa: F403
from dovetail.ops.elementwise import *  # noqa: F403
from dovetail.ops.movement import *  # noqa: F403
from dovetail.ops.operators import PrimitiveOperators
from dovetail.ops.reduction import *  # noqa: F403

Value.operators = PrimitiveOperators()

ALL = (*elementwise.ALL, *contraction.ALL, *reduction.ALL, *movement.ALL)
