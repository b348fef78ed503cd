"""The parameters that a program is bound to, and the programs made with them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Generic, TypeVar

from dovetail.ir.solve import solve_symbols
from dovetail.ir.value import Value
from dovetail.runtime.binding import found_in
from dovetail.targets.runtime.lru import LRU
from dovetail.targets.runtime.weights import Weights
from dovetail.targets.target import QuickDeviceRun, QuickRun, Runner

P = TypeVar("P")
"""The programs that are made: those of the module that binds them."""
MOST_SPECIALIZED = 8
"""How many sizes a symbolic program keeps compiled."""


class Binding(Generic[P]):
    """The parameters of a program, and what was made of them. It is replaced as a whole, never changed."""

    def __init__(self, params: Weights, declared: Mapping[str, Value]) -> None:
        """`declared` are the parameters that runs need. Specialised programs and cases may need the others."""
        self.given = params
        self.params = params.only(declared)
        solve_symbols(found_in(self.params.cells, declared, bare=True))
        self.symbolic = [f for f in found_in(self.params.cells, declared) if not f.type.is_static]
        """Parameters whose shapes tell symbols, together with those of the inputs."""
        self.specialized: LRU[P] = LRU(MOST_SPECIALIZED)
        self.cases: LRU[P | None] = LRU(MOST_SPECIALIZED)
        self.case_of_shapes: dict[tuple[tuple[int, ...], ...], P] = {}
        """Which case served the shapes of an earlier run."""
        self.runner: Runner | None = None
        self.quick: QuickRun | None = None
        self.quick_on_device: QuickDeviceRun | None = None
        """Of the runner, where it has them and it runs at the sizes of the inputs."""
        self.lock = threading.Lock()


__all__ = ["MOST_SPECIALIZED", "Binding"]
