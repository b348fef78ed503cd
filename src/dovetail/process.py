"""Whether this process is dovetail's own, such as that of a command, or one that a user shares with it.

In a process of its own, dovetail pauses Python's cycle collector while graphs are built, and returns freed memory to
the system. In others it does neither, until `claim` is called.
"""

from __future__ import annotations

_is_own = False


def claim() -> None:
    """Let dovetail change the collector of garbage and the allocator of this process."""
    global _is_own
    _is_own = True


def is_own() -> bool:
    """Return whether `claim` was called."""
    return _is_own


__all__ = ["claim", "is_own"]
