"""Matching traced patterns against graphs."""

from dovetail.match.matcher import match
from dovetail.match.mismatch import Bound, Mismatch

__all__ = ["Bound", "Mismatch", "match"]
