"""What serves a step of a plan, as reports tell it: a kernel variant with its cost, or the host."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.declare.machine import Cost


@dataclass(frozen=True, slots=True)
class Served:
    """A step as a target runs it."""

    variant: str | None = ""
    """Which of the op's kernels; "" where it has one, None on the host."""
    cost: Cost | None = None
    """Work and traffic of the kernel without the op's elementwise steps, where the variant decides them; None counts
    what the op declares. One that names its dtype has the traffic of the whole step."""
    why: str = ""
    """Why it runs on the host, where a template raised."""

    @property
    def on_host(self) -> bool:
        return self.variant is None


__all__ = ["Served"]
