"""The arbiter: where results differ, float64 says which of them is off, and how far rounding alone explains it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import DovetailError
from dovetail.ir.dtype import of_numpy
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.type import tensors
from dovetail.progress import phase
from dovetail.runtime.deviation import deviations, difference
from dovetail.targets.reference.interpreter import evaluate

DRAWS = 3
"""How often a model runs with leaves that are moved by one rounding."""
ROUNDINGS = 32
"""How many roundings a correct kernel may be from the exact result: a sum of a thousand terms makes as many."""


@dataclass(frozen=True, slots=True)
class Amplification:
    """What rounding does to an output, measured with NumPy in the precision of the model."""

    moved: float
    """How far the output lies from float64 at most where each input and parameter is moved by one rounding."""
    roundoff: float
    """That of the coarsest float of the model."""

    @property
    def factor(self) -> float:
        """How many times the model amplifies a rounding."""
        return self.moved / self.roundoff

    @property
    def explained(self) -> float:
        """How far from float64 a correct program may be."""
        return ROUNDINGS * self.moved

    @property
    def words(self) -> str:
        """What is said of it in a line."""
        if np.isinf(self.moved):
            return "one rounding changes which sizes or infinities it has"
        factor = f"{self.factor:,.0f}" if self.factor >= 1 else f"{self.factor:.2g}"
        return f"the model amplifies rounding {factor} times, which explains {self.explained:.2g}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """One output of several runtimes beside float64."""

    output: str
    distances: Mapping[str, float]
    """How far each lies from float64, by its name."""
    amplification: Amplification

    def is_right(self, name: str, tolerance: float | None, of_dtype: float) -> bool:
        """Whether one is as near as its tolerance; without one, as that of its dtype or as rounding explains."""
        allowed = max(of_dtype, self.amplification.explained) if tolerance is None else tolerance
        return self.distances[name] <= allowed

    @property
    def words(self) -> str:
        """Who is how far off, in a line."""
        told = ", ".join(f"{name} {distance:.2g}" for name, distance in self.distances.items())
        return f"from float64: {told}; {self.amplification.words}"


def judged(
    graph: Graph,
    feeds: Mapping[str, Array],
    params: Mapping[str, Array],
    results: Mapping[str, Mapping[str, Array]],
    outputs: Iterable[str],
) -> dict[str, Judgement]:
    """Judge some outputs of several runtimes by the graph as written; none where NumPy cannot compute it."""
    names = list(outputs)
    try:
        with phase("judge by float64"):
            exact = evaluate(graph, feeds, lift=True, params=params)
            noise = amplifications(graph, feeds, params, exact)
    except DovetailError:
        return {}
    asked = {name: exact[name] for name in names}
    away = {who: deviations(partial(dict, arrays), asked) for who, arrays in results.items()}
    return {name: Judgement(name, {who: away[who][name] for who in away}, noise[name]) for name in names}


def amplifications(
    graph: Graph,
    feeds: Mapping[str, Array],
    params: Mapping[str, Array],
    exact: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Amplification]:
    """By output, how far it moves from its exact value where each leaf is moved by one rounding.

    The model runs in its own precision, so that the roundings on the way count too, in another draw each time.
    """
    moved = dict.fromkeys(exact, 0.0)
    weights = {**graph.params, **params}
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        inputs, changed = dict(_moved(feeds, rng)), dict(_moved(weights, rng))
        found = evaluate(graph, inputs, params=changed, sizes=sizes)
        for name, array in exact.items():
            away = difference(found[name].astype(array.dtype), array)
            moved[name] = max(moved[name], away)
    return {name: Amplification(most, _roundoff(graph)) for name, most in moved.items()}


def _moved(arrays: Mapping[str, Array], rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """Arrays whose floats are each the next one up or down."""
    for name, array in arrays.items():
        dtype = of_numpy(array.dtype)
        if dtype is None or dtype.kind != "float" or dtype.roundoff > 2.0**-8:
            yield name, array  # bytes of quantized weights mean what they are
            continue
        step = 2 * dtype.roundoff * rng.choice(np.array([-1.0, 1.0]), array.shape)
        with np.errstate(all="ignore"):
            changed = (array.astype(np.float64) * (1 + step)).astype(array.dtype)
        yield name, np.where(np.isfinite(changed), changed, array)  # the largest number has no next one


def _roundoff(graph: Graph) -> float:
    dtypes = {t.dtype for value in graph.values for t in tensors(value.type)}
    return max((d.roundoff for d in dtypes if d.is_inexact), default=2.0**-24)


__all__ = ["DRAWS", "ROUNDINGS", "Amplification", "Judgement", "amplifications", "judged"]
