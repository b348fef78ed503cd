"""Which targets keep an op as one kernel."""

from __future__ import annotations

from dovetail.targets import every_target


def keepers(op: str) -> tuple[str, ...]:
    """The names of the targets that keep an op; the reference computes every op by its body."""
    return tuple(t.name for t in every_target() if t.name != "reference" and t.claims(()).has(op))


__all__ = ["keepers"]
