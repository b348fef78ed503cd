"""Matching traced patterns against graphs."""

from dovetail.match.matcher import match, matches
from dovetail.match.mismatch import Bound, Mismatch
from dovetail.match.outline import Outlines, fits

__all__ = ["Bound", "Mismatch", "Outlines", "fits", "match", "matches"]
