"""The parameters that a program is bound to, and the programs made with them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from dovetail.ir.solve import solve_symbols
from dovetail.ir.value import Value
from dovetail.runtime.binding import found_in
from dovetail.runtime.cases import shapes_of
from dovetail.targets.runtime.arrays.array_library import ArrayLibrary
from dovetail.targets.runtime.building.lru import LRU
from dovetail.targets.runtime.building.weights import Weights
from dovetail.targets.target import Launches, QuickDeviceRun, QuickRun, Runner

if TYPE_CHECKING:
    from dovetail.targets.runtime.calls.prepared_call import RunPrepared

MOST_SPECIALIZED = 8
"""How many sizes a symbolic program keeps compiled."""
MOST_SHAPES = 256
"""How many shapes a binding remembers the case of."""


class Launching(Protocol):
    """A program, as far as its binding calls it."""

    def launch(self, arrays: Sequence[Any], library: ArrayLibrary) -> dict[str, Any] | None: ...


P = TypeVar("P", bound=Launching)
"""The programs that are made: those of the module that binds them."""


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
        self._launchers: dict[ArrayLibrary, RunPrepared | None] = {}

    def case_before(self, inputs: Mapping[str, Any], names: Collection[str]) -> P | None:
        """The program of the case that served these shapes before."""
        shapes = shapes_of(inputs, names)
        return None if shapes is None else self.case_of_shapes.get(shapes)

    def remember(self, shapes: tuple[tuple[int, ...], ...], case: P) -> None:
        """Note which case serves these shapes."""
        if len(self.case_of_shapes) < MOST_SHAPES:
            self.case_of_shapes[shapes] = case

    def launch(self, arrays: Sequence[Any], library: ArrayLibrary) -> dict[str, Any] | None:
        """A prepared call on arrays of a library; None where there is none, or the arrays must be checked."""
        if self.case_of_shapes:
            case = self.case_of_shapes.get(tuple([getattr(a, "shape", ()) for a in arrays]))
            if case is not None:
                return case.launch(arrays, library)
        launch = self._launchers.get(library)
        if launch is None:
            if not isinstance(self.runner, Launches):
                return None
            launch = self._launchers[library] = self.runner.launcher(library)
        return None if launch is None else launch(arrays)


__all__ = ["MOST_SPECIALIZED", "Binding"]
