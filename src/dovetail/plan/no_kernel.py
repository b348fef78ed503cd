"""Why a step has no compiled kernel."""

from __future__ import annotations


class NoKernel(str):
    """The kernel form of a step that runs on the host because every template that could serve it raised."""

    __slots__ = ()


__all__ = ["NoKernel"]
