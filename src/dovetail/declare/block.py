"""Blocks: declared ops of the highest level, which models are written in."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import ParamSpec

from dovetail.declare.fused import FusedOp, Result

P = ParamSpec("P")


class Block(FusedOp[P]):
    """A declared op that is spelled out before any optimization, so that fusion finds what it can."""

    def __init__(self, body: Callable[P, Result], *, shapes: str) -> None:
        super().__init__(body, shapes=shapes, stage="fuse")

    @cached_property
    def differentiates_by_row(self) -> bool:
        """Its body is never a pattern, and may read shapes: it is not traced without them."""
        return False


def block(*, shapes: str) -> Callable[[Callable[P, Result]], Block[P]]:
    """Declare a block by its body."""
    return lambda body: Block(body, shapes=shapes)
