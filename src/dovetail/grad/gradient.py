"""`dovetail.graphs.gradient`: the gradient of a value by others, as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dovetail.errors import GradientError
from dovetail.grad.places import BackwardPlaces
from dovetail.grad.walk import has_gradient, pull_back
from dovetail.ir import leaf, origin
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops import adjoint

Unreached = Literal["error", "zeros"]
"""What becomes of a value that the result does not depend on."""


def gradient(
    y: Value, wrt: Sequence[Value], seed: Value | None = None, *, unreached: Unreached = "error"
) -> list[Value]:
    """Return the derivative of y by each value of `wrt`, in their order.

    y has one element, or a seed of its type weighs its elements. All values that stop the gradient are named in one
    `GradientError`, with their places; so are those of `wrt` that y does not depend on, unless these are to be zeros.
    """
    recorder = origin.active()
    places = BackwardPlaces({} if recorder is None else recorder.origins)
    with places.recording():
        derivatives = gradients(y, wrt, seed, unreached, places)
    if recorder is not None:
        recorder.origins.update(places.fresh_origins())
    return derivatives


def gradients(
    y: Value, wrt: Sequence[Value], seed: Value | None, unreached: Unreached, places: BackwardPlaces
) -> list[Value]:
    """Return the derivatives, each created in the place of its forward value."""
    start = _seed(y, seed)
    _check_floats(wrt, places)
    gradient_of = pull_back({y: start}, wrt, at=places.at, where=places.where)
    lost = [v for v in dict.fromkeys(wrt) if v not in gradient_of]
    if lost and unreached == "error":
        raise GradientError(
            f"{_spelled(y, places)} does not depend on {', '.join(_spelled(v, places) for v in lost)}",
            hint=f'leave them out of `wrt`{_left_out(lost)}, or pass unreached="zeros"',
        )
    for value in lost:
        with places.at(value):
            gradient_of[value] = adjoint.zeros_like(value)
    return [gradient_of[v] for v in wrt]


def _seed(y: Value, seed: Value | None) -> Value:
    if not isinstance(y.type, TensorType) or not y.dtype.is_float:
        raise GradientError(f"the gradient of {y!r}", hint="differentiate one tensor of floats")
    if seed is None:
        if y.tensor.count != 1:
            raise GradientError(
                f"the gradient of {y!r}, which has {y.tensor.count} elements",
                hint="reduce it to one number, a loss, or pass a seed of its type",
            )
        return adjoint.broadcast(leaf.scalar(1.0, y.dtype), y.shape)
    if seed.type != y.type:
        raise GradientError(f"a seed {seed.type} for {y.type}", hint="a seed has the type of what is differentiated")
    return seed


def _check_floats(wrt: Sequence[Value], places: BackwardPlaces) -> None:
    wrong = [v for v in wrt if not isinstance(v.type, TensorType) or not has_gradient(v.type)]
    if wrong:
        raise GradientError(
            f"no gradient by {', '.join(_spelled(v, places) for v in wrong)}",
            hint="only floats have a gradient: leave out integers and bools; of several results take one",
        )


def _left_out(lost: Sequence[Value]) -> str:
    """Describe how patterns leave out parameters."""
    names = [f'"!{v.attrs["name"]}"' for v in lost if v.op in (leaf.PARAM, leaf.INPUT)]
    return f', as in wrt=["*", {", ".join(names)}]' if len(names) == len(lost) else ""


def _spelled(value: Value, places: BackwardPlaces) -> str:
    place = places.where(value)
    return f"{value!r} at {place}" if place else repr(value)


__all__ = ["Unreached", "gradient", "gradients"]
