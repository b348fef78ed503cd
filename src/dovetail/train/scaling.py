"""The scale of a loss whose gradients are computed in f16: halved where they overflow, doubled after a while."""

from __future__ import annotations

from dovetail.dataclass import dataclass

_PATIENCE = 2000
"""Steps without overflow after which the scale is doubled."""
_LEAST, _MOST = 1.0, 2.0**24


@dataclass(frozen=True, slots=True)
class LossScale:
    """The scale now, and how many steps it has held."""

    now: float = 2.0**16
    fine: int = 0

    def after(self, fine: bool) -> LossScale:
        """Return the scale after a step whose gradients were finite, or not."""
        if not fine:
            return LossScale(max(self.now / 2, _LEAST))
        if self.fine + 1 < _PATIENCE:
            return LossScale(self.now, self.fine + 1)
        return LossScale(min(self.now * 2, _MOST))


__all__ = ["LossScale"]
