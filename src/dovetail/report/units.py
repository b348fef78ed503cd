"""Numbers for people: shares, bytes and times."""

from __future__ import annotations


def percent(share: float) -> str:
    """A share for people."""
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else f"{100 * share:.1g} %"


def bytes_text(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def time_text(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


__all__ = ["bytes_text", "percent", "time_text"]
