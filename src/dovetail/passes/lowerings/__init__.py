"""Lowerings: primitives spelled in others, for targets that do not run them natively. One op a file."""

from dovetail.passes.legalize import Lowering
from dovetail.passes.lowerings.dot import lower_dot

LOWERINGS: dict[str, Lowering] = {"dot": lower_dot}

__all__ = ["LOWERINGS"]
