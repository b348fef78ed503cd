"""Cases of a program: sizes that break what it takes for granted, each served by a compilation of its own.

A model says `[b, 4] * [k, 4]`. One program takes b and k to be equal; a run where k is 1 gets another program, which is
compiled when it is first needed and kept. A default of the model that a run overrides is a case too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import field
from typing import Any, Generic, TypeVar

from dovetail.dataclass import dataclass
from dovetail.errors import BindError, DovetailError, SizeError
from dovetail.ir import leaf
from dovetail.ir.dim import substitute
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.passes.specialize import Specializer, attribute_symbols
from dovetail.targets.runtime.building.lru import LRU


@dataclass(frozen=True, slots=True)
class Case:
    """What a compilation knows in addition to the graph."""

    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    free: frozenset[str] = frozenset()
    """Initializers that runs of this case pass as inputs."""
    fixed: Mapping[str, Array] = field(default_factory=dict[str, Array])
    """Values of inputs that decide the structure of the model."""

    @property
    def key(self) -> Hashable:
        """Equal for equal cases."""
        arrays = [(n, a.dtype.str, a.shape, hashlib.sha1(a.tobytes()).hexdigest()) for n, a in self.fixed.items()]
        return tuple(sorted(self.sizes.items())), self.free, tuple(sorted(arrays))

    def __str__(self) -> str:
        said = [f"{name} = {size}" for name, size in sorted(self.sizes.items())]
        said += [f"{name} given" for name in sorted(self.free)]
        return ", ".join([*said, *(f"{name} of this value" for name in sorted(self.fixed))])


def case_of_sizes(error: SizeError, sizes: Mapping[str, int]) -> Case | None:
    """The case that sizes make which break a constraint: those that are 1 are known, or all where none is 1."""
    known = {name: sizes[name] for name in error.symbols if name in sizes}
    ones = {name: size for name, size in known.items() if size == 1}
    return Case(ones or known) if known else None


def graph_of_case(graph: Graph, case: Case) -> Graph:
    """The graph as it is in a case: imported again where that is possible, else with its types inferred again."""
    if graph.reread is not None:
        return graph.reread({**case.sizes, **case.fixed}, case.free)
    if case.free or case.fixed:
        raise BindError(f"{graph.name} has no defaults to override", hint="pass the declared inputs alone")
    _refuse_ambiguous(graph, case.sizes)
    numbers: dict[str, Any] = dict(case.sizes)
    specializer = Specializer(lambda size: substitute(size, numbers), str(case), graph)
    left = [c for assumed in graph.assumed if (c := assumed.bind(numbers)) is not None]
    return specializer.graph_with(left).settled()


def _refuse_ambiguous(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Refuse attributes with a size of a broadcast: their author may have meant either of the two."""
    together = set(sizes)
    pairs = [c.symbols for c in graph.constraints if c.relation == "equals"]
    for _ in pairs:
        together.update(*(pair for pair in pairs if not pair.isdisjoint(together)))
    for value in graph.values:
        is_leaf = value.op is leaf.INPUT or value.op is leaf.PARAM
        if not is_leaf and not together.isdisjoint(attribute_symbols(value)):
            names = ", ".join(sorted(together))
            raise BindError(
                f"{value.op.name} has an attribute of a size that is taken to be equal to another: {names}",
                hint="give the tensor that is broadcast the size 1",
                where=graph.where(value),
            )


def shapes_of(inputs: Mapping[str, Any], names: Collection[str]) -> tuple[tuple[int, ...], ...] | None:
    """The shapes of arrays, in the order of the names; None where there are other inputs."""
    try:
        return tuple([inputs[name].shape for name in names]) if len(inputs) == len(names) else None
    except (AttributeError, KeyError):
        return None


P = TypeVar("P")


class Cases(Generic[P]):
    """The programs of cases, not bound to parameters; those used last are kept."""

    def __init__(self, compiler: Callable[[Case], P] | None, most: int) -> None:
        self.compiler = compiler
        self.compiled: list[Case] = []
        self._made: LRU[P | None] = LRU(most)

    def get(self, case: Case, refuse: type[DovetailError] | tuple[()] = ()) -> P | None:
        """The program of a case; None where it cannot be compiled. Errors of the kind `refuse` are raised."""
        return self._made.get(case.key, lambda: self._compiled(case, refuse))

    def _compiled(self, case: Case, refuse: type[DovetailError] | tuple[()]) -> P | None:
        if self.compiler is None:
            return None
        try:
            made = self.compiler(case)
        except refuse:
            raise
        except DovetailError:
            return None
        self.compiled.append(case)
        return made


__all__ = ["Case", "Cases", "case_of_sizes", "graph_of_case", "shapes_of"]
