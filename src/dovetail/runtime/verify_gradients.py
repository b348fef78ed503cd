"""Verifying gradients: against differences in float64 on the user's own model; the first value that is not finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.errors import GradientError
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.passes.differentiate import PREFIX
from dovetail.progress import phase
from dovetail.runtime.gradients import value_and_grad
from dovetail.runtime.random_inputs import RandomInputs, random_inputs
from dovetail.targets.reference.interpreter import Result, evaluate_in_turn
from dovetail.targets.runtime.arrays.feeds import bind_leaves

STEP = 1e-6
TOLERANCE = 1e-4
"""How far a slope may be from its difference quotient, relative to the size of the terms that it sums."""
_LOSS = "gradient_check"


@dataclass(frozen=True, slots=True)
class SlopeCheck:
    """The gradient by one parameter or input, along a random direction."""

    name: str
    derived: float
    by_differences: float
    deviation: float
    """Their difference, relative to the size of the terms."""
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.deviation <= self.tolerance


@dataclass(frozen=True, slots=True)
class NotFinite:
    """The first value of a run that made NaN or infinities which an output shows."""

    value: Value
    where: str
    """Its place; that of a backward value is marked."""
    count: int
    """How many of its elements are not finite."""


@dataclass(frozen=True, slots=True)
class GradientVerification:
    """What verifying gradients found."""

    checks: tuple[SlopeCheck, ...]
    """The one that is furthest off first."""
    unreached: tuple[str, ...]
    """Parameters that no output depends on smoothly."""
    not_finite: NotFinite | None
    sizes: Mapping[str, int]

    @property
    def holds(self) -> bool:
        return self.not_finite is None and all(c.holds for c in self.checks)


def verify_gradients(
    graph: Graph,
    drawn: RandomInputs | None = None,
    *,
    wrt: str | Sequence[str] = "*",
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> GradientVerification:
    """Compare every gradient with central differences in float64, along one random direction for each parameter.

    The loss is the one output with one element; of other graphs, the mean of y + y² / 2 over all float outputs.
    """
    drawn = drawn or random_inputs(graph, seed=seed)
    scalar = with_loss(graph)
    both = value_and_grad(scalar, wrt, loss=_LOSS, unreached="zeros")
    names = [name.removeprefix(PREFIX) for name in both.outputs if name not in scalar.outputs]
    unreached = _unreached(scalar, names)
    bad = first_not_finite(both, drawn)
    leaves = bind_leaves(both, drawn.feeds, drawn.params)
    with phase("verify gradients") as told:
        wanted = [both.outputs[PREFIX + name] for name in names]
        found = dict(evaluate_in_turn(list(dict.fromkeys(wanted)), leaves, lift=True, sizes=drawn.sizes))
        rng = np.random.default_rng(seed)
        checks: list[SlopeCheck] = []
        for number, (name, gradient) in enumerate(zip(names, wanted, strict=True)):
            told.at(number + 1, len(names), name, done=number / len(names))
            if name not in unreached:
                slope = found[gradient]
                assert isinstance(slope, np.ndarray)
                checks.append(_checked(scalar, name, slope, leaves, drawn.sizes, rng, tolerance))
    return GradientVerification(
        tuple(sorted(checks, key=lambda c: -c.deviation)), tuple(unreached), bad, dict(drawn.sizes)
    )


def with_loss(graph: Graph) -> Graph:
    """The graph with one more output: a number that depends on all float outputs."""
    floats = [v for v in graph.outputs.values() if isinstance(v.type, TensorType) and v.dtype.is_float]
    if not floats:
        raise GradientError(f"{graph.name} has no float outputs", hint="gradients are of floats")
    if len(floats) == 1 and floats[0].tensor.count == 1:
        loss = floats[0]
    else:
        parts = [_one_number(v) for v in floats]
        loss = parts[0]
        for part in parts[1:]:
            loss = loss + ops.cast(part, dtype=loss.dtype)
    return replace(graph, outputs={**graph.outputs, _LOSS: loss})


def _one_number(y: Value) -> Value:
    axes = tuple(range(-y.rank, 0))
    both = y + y * y * 0.5
    return ops.squeeze(ops.reduce_mean(both, axes=axes), axes=axes) if axes else both


def _unreached(graph: Graph, names: Sequence[str]) -> list[str]:
    """Those of the names that the loss does not depend on."""
    try:
        value_and_grad(graph, names, loss=_LOSS)
    except GradientError as error:
        return [name for name in names if f"<{name}:" in error.message]
    return []


def _checked(
    graph: Graph,
    name: str,
    gradient: Array,
    leaves: Mapping[Value, Array],
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    tolerance: float,
) -> SlopeCheck:
    """The slope along one direction, derived and by central differences."""
    (value,) = [v for v in leaves if v.attrs["name"] == name]
    given = leaves[value].astype(np.float64)
    along = rng.normal(size=given.shape)
    sides: list[float] = []
    for sign in (1.0, -1.0):
        moved = {**leaves, value: given + sign * STEP * along}
        ((_, loss),) = evaluate_in_turn([graph.outputs[_LOSS]], moved, lift=True, sizes=sizes)
        assert isinstance(loss, np.ndarray)
        sides.append(float(loss.reshape(())))
    numeric = (sides[0] - sides[1]) / (2 * STEP)
    derived = float(np.sum(gradient * along))
    # The terms of the sum, and the rounding of the loss.
    scale = max(float(np.sqrt(np.sum((gradient * along) ** 2))), abs(sides[0]) * 1e-9 / STEP, 1e-12)
    deviation = abs(derived - numeric) / scale
    return SlopeCheck(name, derived, numeric, deviation if np.isfinite(deviation) else np.inf, tolerance)


def first_not_finite(graph: Graph, drawn: RandomInputs) -> NotFinite | None:
    """Of a run that gives NaN or infinities, in the graph's own precision: the first value that made them.

    Infinities that no output shows, as in a mask of -inf before a softmax, may pass.
    """
    leaves = bind_leaves(graph, drawn.feeds, drawn.params)
    wanted = [v for v in graph.values if v.operands]
    constants = {v: v.attrs["value"].array for v in graph.values if v.op is leaf.CONST}
    badness = {v: _badness(a) for v, a in {**leaves, **constants}.items()}
    makers: dict[Value, int] = {}
    with np.errstate(all="ignore"):
        for value, result in evaluate_in_turn(wanted, leaves, sizes=drawn.sizes):
            badness[value] = _badness(result)
            if badness[value] > max(badness.get(v, 0) for v in value.operands):
                makers[value] = _not_finite(result)
    harmless = {v for v, level in badness.items() if level == 0}
    shown = set(walk([v for v in graph.outputs.values() if badness.get(v)], until=harmless))
    return next((NotFinite(v, graph.where(v), n) for v, n in makers.items() if v in shown), None)


def _badness(result: Result) -> int:
    """0 for finite numbers, 1 for infinities among them, 2 for NaN."""
    arrays = _floats(result)
    return 2 if any(np.isnan(a).any() for a in arrays) else int(any(np.isinf(a).any() for a in arrays))


def _not_finite(result: Result) -> int:
    return sum(int(np.count_nonzero(~np.isfinite(a))) for a in _floats(result))


def _floats(result: Result) -> list[Array]:
    return [a for a in (result if isinstance(result, tuple) else (result,)) if a.dtype.kind in "fc"]


__all__ = ["GradientVerification", "NotFinite", "SlopeCheck", "first_not_finite", "verify_gradients", "with_loss"]
