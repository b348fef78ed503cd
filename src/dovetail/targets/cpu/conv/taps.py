"""The loop over the taps of one channel, which register tiles share."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.codegen.llvm.handles import I64, Carried, Ptr
from dovetail.codegen.llvm.vector import VectorBuilder


def each_tap(t: VectorBuilder, state: Carried, accumulate: Callable[[Carried, Ptr], None], *, once: bool) -> None:
    """Accumulate every tap of one channel, or the only one; pointers of `state` are into weights and image.

    Offsets of the taps from the image are at `%offsets`, and `%taps` is how many there are.
    """
    w, x = state.pointers
    if once:
        accumulate(state, x)
        return
    with t.repeat([0], [w], state.vectors) as taps:
        offset = t.load_i64(t.element(Ptr("%offsets"), "i64", taps.integers[0]))
        accumulate(taps, t.ptr_add(x, offset))
        taps.integers[0] = t.following(taps.integers[0])
        taps.again = t.icmp("slt", taps.integers[0], I64("%taps"))
    state.pointers[0] = taps.pointers[0]
    state.vectors[:] = taps.vectors


__all__ = ["each_tap"]
