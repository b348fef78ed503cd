"""What made a step's loss or gradients infinite or NaN."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail.errors import GradientError
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.runtime.random_inputs import RandomInputs, random_inputs
from dovetail.runtime.verify_gradients import first_not_finite


def not_finite(
    joint: Graph, fed: Mapping[str, Array], frozen: Mapping[str, Array], step: int, loss: float, norm: float
) -> GradientError:
    """The error of a step; `joint` computes the loss and its gradients from what the step was fed."""
    told = f"step {step} has the loss {loss} and gradients of norm {norm}"
    names = {str(v.attrs["name"]) for v in joint.inputs}
    given = {n: a for n, a in fed.items() if n in names}
    bad = [n for n, a in given.items() if a.dtype.kind == "f" and not np.isfinite(a).all()]
    if bad:
        counted = ", ".join(f"{np.count_nonzero(~np.isfinite(given[n]))} elements of {n}" for n in bad)
        return GradientError(
            f"{told}: {counted} are not finite", hint="no weight was changed; leave such rows out of the data"
        )
    drawn = random_inputs(joint, given)
    params = {n: a for n, a in frozen.items() if n not in joint.params}
    found = first_not_finite(joint, RandomInputs(drawn.feeds, params, drawn.sizes))
    if found is not None:
        at = f" at {found.where}" if found.where else ""
        told += f": {found.count} elements of {found.value!r}{at} are the first that are not finite"
    return GradientError(told, hint="no weight was changed; try a lower rate, clip_norm=1.0, or a mask by where")


__all__ = ["not_finite"]
