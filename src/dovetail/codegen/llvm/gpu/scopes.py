"""Which accesses of a GPU's shared memory are apart, as LLVM's alias scopes.

Dynamic shared memory is one array, so that LLVM takes a store to one allocation for a change of all others: it loads
elements one by one, each after the store before it. Each allocation is a scope of its own here. Allocations that take
the same place do so at different times, with a barrier of the block between them, and no access crosses that.
"""

from __future__ import annotations

from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Alloc, Kernel

_DOMAIN = 2
"""The number of the first note: those before it are of loops."""


class Scopes:
    """The scopes of the dynamic shared memory of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        every = [s for part in (kernel.early, kernel.body, kernel.stream) for s in everything(part)]
        names = dict.fromkeys([s.pointer for s in every if isinstance(s, Alloc) and s.space == "shared"])
        is_dynamic = kernel.launch is not None and kernel.launch.shared_bytes > 0
        self._first = {name: _DOMAIN + 1 + 3 * i for i, name in enumerate(names)} if is_dynamic else {}
        """The first of three notes of each allocation: its scope, a list of that, and one of all others."""

    def of(self, pointer: str) -> str:
        """What follows a load or a store through a pointer; nothing where that is no allocation."""
        first = self._first.get(pointer)
        return "" if first is None else f", !alias.scope !{first + 1}, !noalias !{first + 2}"

    @property
    def notes(self) -> list[str]:
        """What the module says of them."""
        scopes = [*self._first.values()]
        lines = [f'!{_DOMAIN} = distinct !{{!{_DOMAIN}, !"shared memory"}}'] if scopes else []
        for scope in scopes:
            others = ", ".join([f"!{other}" for other in scopes if other != scope])
            lines.append(f"!{scope} = distinct !{{!{scope}, !{_DOMAIN}}}")
            lines += [f"!{scope + 1} = !{{!{scope}}}", f"!{scope + 2} = !{{{others}}}"]
        return lines


__all__ = ["Scopes"]
