"""Which known names come nearest to one that is not known, for the hints of errors."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, most: int = 1) -> list[str]:
    """Up to `most` known names that resemble a name, the most similar first."""
    import difflib  # only errors need it

    return difflib.get_close_matches(name, list(known), n=most)


def suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """The hint for a name that is not known: the nearest known one, else what is said otherwise."""
    near = nearest(name, known)
    return f"did you mean {near[0]}?" if near else otherwise


__all__ = ["nearest", "suggestion"]
