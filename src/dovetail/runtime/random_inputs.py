"""Random inputs and weights for a graph, with small sizes for its symbols."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import BindError
from dovetail.ir.dim import Dim, evaluate
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.solve import Found, solve_symbols
from dovetail.ir.value import Value
from dovetail.models.weights import random_weights
from dovetail.passes.specialize import symbols_of
from dovetail.targets.runtime.arrays.feeds import named_leaf
from dovetail.targets.runtime.arrays.memory_limit import check_fits

_SMALL = (2, 3, 4, 5)
_OTHERS = (4, 8, 16, 32, 1, 2, 64, 128)


@dataclass(frozen=True, slots=True)
class RandomInputs:
    """Everything that a run of a graph needs."""

    feeds: Mapping[str, Array]
    params: Mapping[str, Array]
    """Those that the graph does not come with."""
    sizes: Mapping[str, int]


def random_inputs(graph: Graph, given: Mapping[str, Array] | None = None, *, seed: int = 0) -> RandomInputs:
    """Random arrays for all inputs and parameters that have none; free symbols become small sizes.

    Floats come from a normal distribution; integers are 0 or 1, so that a mask sometimes hides everything.
    """
    given = given or {}
    sizes = small_sizes(graph, _known_sizes(graph, given))
    feeds: dict[str, Array] = {}
    for place, value in enumerate(graph.inputs):
        name = str(value.attrs["name"])
        feeds[name] = given[name] if name in given else random_array(value, sizes, np.random.default_rng((seed, place)))
    missing = any(str(v.attrs["name"]) not in graph.params for v in graph.parameters)
    weights = random_weights(graph, seed, sizes) if missing else {}
    return RandomInputs(feeds, {n: a for n, a in weights.items() if n not in graph.params}, sizes)


def _known_sizes(graph: Graph, given: Mapping[str, Array]) -> dict[str, int]:
    """The sizes of arrays: of those that are given, and of parameters that came with the graph."""
    found: list[Found] = []
    for value in graph.inputs:
        array = given.get(str(value.attrs["name"]))
        if array is not None:
            found.append(Found(named_leaf(value), value.tensor, array.shape))
    for value in graph.parameters:
        array = graph.params.get(str(value.attrs["name"]))
        if array is not None and not value.tensor.is_static:
            found.append(Found(named_leaf(value), value.tensor, array.shape))
    return solve_symbols(found)


def small_sizes(graph: Graph, known: Mapping[str, int]) -> dict[str, int]:
    """A small number for each symbol that a caller binds, so that all constraints of the graph hold."""
    wanted = sorted(symbols_of(graph)[0] - known.keys())
    tried: BindError | None = None
    for numbers in _choices(len(wanted)):
        sizes = {**known, **dict(zip(wanted, numbers, strict=True))}
        try:
            for constraint in graph.constraints:
                constraint.bind(sizes)
        except BindError as error:
            tried = tried or error
            continue
        return sizes
    listed = " ".join(f"--size {name}=…" for name in wanted)
    why = tried.message if tried is not None else ""
    raise BindError(f"no small sizes were found for {', '.join(wanted)}: {why}", hint=f"give them: {listed}")


def _choices(count: int) -> Iterator[Sequence[int]]:
    """Different numbers first, then the same one for all, then all pairs for the first two."""
    yield [_SMALL[i % len(_SMALL)] for i in range(count)]
    for number in _OTHERS:
        yield [number] * count
    for one in _OTHERS:
        for other in _OTHERS:
            yield [one, *([other] * (count - 1))][:count]


def random_array(value: Value, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    """An array for an input: floats from a normal distribution, integers 0 or 1."""
    shape = tuple(evaluate(s, sizes) if isinstance(s, Dim) else s for s in value.shape)
    dtype = value.dtype
    # Drawn in float64 or int64, then cast.
    check_fits(math.prod(shape) * (8 + dtype.numpy.itemsize), f"an array for {named_leaf(value)} ({value.type})")
    if dtype.is_inexact:
        return np.asarray(rng.standard_normal(shape)).astype(dtype.numpy)
    return np.asarray(rng.integers(0, 2, shape)).astype(dtype.numpy)


__all__ = ["RandomInputs", "random_array", "random_inputs", "small_sizes"]
