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
    """Return the error of a step; `joint` computes the loss and its gradients from the step's feeds."""
    summary = f"step {step} has the loss {loss} and gradients of norm {norm}"
    names = {str(v.attrs["name"]) for v in joint.inputs}
    inputs = {n: a for n, a in fed.items() if n in names}
    bad = [n for n, a in inputs.items() if a.dtype.kind == "f" and not np.isfinite(a).all()]
    if bad:
        counted = ", ".join(f"{np.count_nonzero(~np.isfinite(inputs[n]))} elements of {n}" for n in bad)
        return GradientError(
            f"{summary}: {counted} are not finite", hint="no weight was changed; leave such rows out of the data"
        )
    drawn = random_inputs(joint, inputs)
    params = {n: a for n, a in frozen.items() if n not in joint.params}
    culprit = first_not_finite(joint, RandomInputs(drawn.feeds, params, drawn.sizes))
    if culprit is not None:
        at = f" at {culprit.where}" if culprit.where else ""
        summary += f": {culprit.count} elements of {culprit.value!r}{at} are the first that are not finite"
    return GradientError(summary, hint="no weight was changed; try a lower rate, clip_norm=1.0, or a mask by where")


__all__ = ["not_finite"]
