"""Matching traced patterns against graphs."""

from dovetail.match.matcher import match, matches
from dovetail.match.mismatch import Bound, Mismatch
from dovetail.match.outline import fits, nearly_fits

__all__ = ["Bound", "Mismatch", "fits", "match", "matches", "nearly_fits"]
