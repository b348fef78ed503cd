"""What serves a step of a plan, as reports tell it: a kernel variant with its cost, or the host."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.dataclass import dataclass
from dovetail.declare.machine import Cost
from dovetail.ir.literal import Array
from dovetail.ir.value import Value


@dataclass(frozen=True, slots=True)
class Served:
    """A step as a target runs it."""

    variant: str | None = ""
    """Which of the op's kernels; "" where it has one, None on the host."""
    cost: Cost | None = None
    """Work and traffic of the kernel without the op's elementwise steps, where the variant decides them; None counts
    what the op declares. One that names its dtype has the traffic of the whole step."""
    rounding: str = ""
    """What the kernel rounds before it multiplies; "" where products are those of its dtype."""
    error: Callable[[Callable[[Value], Array]], float] | None = None
    """Given what reads weights, how far products of random activations with them are from float64: the norm of what
    rounding changes over the norm of the products. None where it is not measured."""
    why: str = ""
    """What a template raised, so that another one, or the host, serves the step."""
    lacks: tuple[str, ...] = ()
    """On the host: the elementwise steps that compiled code does not have, such as `sin in f64`."""

    @property
    def on_host(self) -> bool:
        return self.variant is None


__all__ = ["Served"]
