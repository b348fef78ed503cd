"""The end of a loop whose phis are written out, for loops that carry what a block of the builder cannot."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import I1, Phi


def end_loop(
    t: Builder, carried: Iterable[tuple[Phi, object, object]], again: I1, *, before: str, along: str, after: str
) -> None:
    """Give each phi its first value, which comes from `before`, and its next; then branch back, or on to `after`."""
    for phi, first, following in carried:
        phi.add(str(first), before)
        phi.add(str(following), t.block)
    t.emit(f"br i1 {again}, label %{along}, label %{after}")
    t.label(after)


__all__ = ["end_loop"]
