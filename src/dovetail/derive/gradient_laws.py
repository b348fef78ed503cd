"""The laws of backward ops: derived gradients are derivatives, declared forms equal them, and the walk finds both."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from dovetail.declare.backward import BackwardOp
from dovetail.declare.fused import FusedOp, Variant
from dovetail.derive.laws import Arguments, Evaluate, LawError, feeds_of, fitting
from dovetail.errors import GradientError
from dovetail.grad.walk import pull_back, seeded
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.type import TensorType, tensors
from dovetail.ir.value import Value

_STEP = 1e-6
_NEAR, _NEAR_IN_HALF = 1e-6, 1e-3
_TRIES = 40


class _Call:
    """A value of an op on drawn operands, with an input for the gradient of each float result."""

    def __init__(self, op: FusedOp[...], variant: Variant, seed: int, chosen: Arguments | None = None) -> None:
        self.value = op(**(chosen or fitting(op, variant, seed)))
        self.results = [t for t in tensors(self.value.type)]
        floats = [i for i, t in enumerate(self.results) if t.dtype.is_float]
        self.gs = {i: leaf.input(f"gradient{i}", self.results[i]) for i in floats}
        self.indices = [i for i, v in enumerate(self.value.operands) if v.dtype.is_float]

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (*self.value.operands, *self.gs.values())

    @property
    def near(self) -> float:
        """How near is near enough: rules write numbers such as 2 / √π, which are kept in the dtype of the operands."""
        return _NEAR if all(v.dtype.bits >= 32 for v in self.inputs if v.dtype.is_float) else _NEAR_IN_HALF

    def has_a_gradient(self, back: BackwardOp) -> bool:
        """Return whether anything flows: there are floats on both sides, and no primitive of the body is refused."""
        if not self.gs or not self.indices:
            return False
        try:
            back.of_value(self.value, self.gs, self.indices)
        except GradientError:
            return False
        return True

    @cached_property
    def forward(self) -> Graph:
        value = self.value
        results = {str(i): (value if len(self.results) == 1 else leaf.item(value, i)) for i in self.gs}
        return Graph.of(results, inputs=self.inputs)

    def named(self, parts: Mapping[int, Value]) -> Graph:
        return Graph.of({str(i): g for i, g in parts.items()}, inputs=self.inputs)

    def by_back(self, back: BackwardOp) -> Graph:
        """Return the gradients as results of the backward op."""
        backward = back.of_value(self.value, self.gs, self.indices)
        gradients = [backward] if isinstance(backward.type, TensorType) else list(backward)
        return self.named(dict(zip(self.indices, gradients, strict=True)))

    def by_pull(self, back: BackwardOp) -> Graph:
        """Return the gradients as the pull of the body gives them."""
        value = self.value
        gradients = back.derived(value.operands, tuple(self.gs.values()), value.attrs, list(self.gs), self.indices)
        return self.named(dict(zip(self.indices, gradients, strict=True)))


def check_backward(
    op: FusedOp[...], variant: Variant, seed: int, evaluate: Evaluate, chosen: Arguments | None = None
) -> None:
    """Check that the backward op gives the derivative of the op along random directions, in float64.

    Where the op declares a form of its gradient, it equals the derived one.
    """
    back = _back_of(op)
    first = _Call(op, variant, seed, chosen)
    if not first.has_a_gradient(back):
        return
    call, feeds = _finite_call(op, variant, seed, evaluate, first)
    forward, operands = call.forward, call.value.operands
    gradients = evaluate(call.by_back(back), feeds)
    rng = np.random.default_rng(seed)
    for i in call.indices:
        name = str(operands[i].attrs["name"])
        along = rng.normal(size=feeds[name].shape)
        up, down = (evaluate(forward, {**feeds, name: feeds[name] + s * _STEP * along}) for s in (1, -1))
        moved = sum(float(np.sum((up[n] - down[n]) * feeds[f"gradient{n}"])) for n in up) / (2 * _STEP)
        slope = float(np.sum(gradients[str(i)] * along))
        # Differences of large results round: their size counts too.
        size = sum(float(np.sum(np.abs(up[n] * feeds[f"gradient{n}"]))) for n in up)
        scale = max(1.0, float(np.sum(np.abs(gradients[str(i)] * along))), 1e-3 * size)
        if not abs(slope - moved) <= call.near * scale:
            raise LawError(f"{back.name} ({variant.label}) by {name}: {slope:.9g}, and by differences {moved:.9g}")
    if op.form is not None:
        _check_form(op, variant, gradients, evaluate(call.by_pull(back), feeds))


def _finite_call(
    op: FusedOp[...], variant: Variant, seed: int, evaluate: Evaluate, first: _Call
) -> tuple[_Call, dict[str, Array]]:
    """Return a call that is finite: roots are of positive numbers, and no row is masked as a whole."""
    for attempt in range(_TRIES):
        call = _Call(op, variant, seed + attempt) if attempt else first
        drawn = feeds_of(call.forward, seed + attempt)
        feeds = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in drawn.items()}
        if attempt % 2:
            feeds = {n: np.abs(a) if a.dtype.kind == "f" else a for n, a in feeds.items()}
        if all(np.isfinite(y).all() for y in evaluate(call.forward, feeds).values()):
            return call, feeds
    raise LawError(f"{op.name} ({variant.label}) is finite for none of the numbers that were drawn")


def _check_form(op: FusedOp[...], variant: Variant, form: Mapping[str, Array], derived: Mapping[str, Array]) -> None:
    for name, expected in derived.items():
        if not np.allclose(form[name], expected, rtol=1e-9, atol=1e-9):
            raise LawError(f"{op.name} ({variant.label}): the gradient that it declares is not the derived one")


def check_built_again(op: FusedOp[...], variant: Variant, seed: int, chosen: Arguments | None = None) -> None:
    """Check that the backward op spells out the very values that a walk through the body makes."""
    back, call = _back_of(op), _Call(op, variant, seed, chosen)
    if not call.has_a_gradient(back):
        return
    value = call.value
    body = op.expansion(value.operands, value.attrs)
    results = body.operands if body.op is leaf.PACK else (body,)
    seeds = seeded(results, [call.gs.get(i) for i in range(len(results))])
    walked = pull_back(seeds, [value.operands[i] for i in call.indices], until=value.operands)
    derived = call.by_pull(back)
    for i in call.indices:
        gradient = walked.get(value.operands[i])
        if gradient is not None and gradient is not derived.outputs[str(i)]:
            raise LawError(f"{back.name} ({variant.label}): building its values again gives others")


def _back_of(op: FusedOp[...]) -> BackwardOp:
    if not isinstance(op.back, BackwardOp):
        raise LawError(f"{op.name} has no backward op", hint="declare it with fused_op")
    return op.back


__all__ = ["check_backward", "check_built_again"]
