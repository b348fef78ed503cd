"""Which targets keep an op as one kernel."""

from __future__ import annotations

from dovetail.targets import ALL as TARGETS
from dovetail.targets.reference.target import TARGET as REFERENCE


def keepers(op: str) -> tuple[str, ...]:
    """The names of the targets that keep an op; the reference computes every op by its body."""
    return tuple(t.name for t in TARGETS if t is not REFERENCE and t.claims(()).has(op))


__all__ = ["keepers"]
