"""Which kernel serves a convolution: the first that suits its sizes, which may be known only when a run is prepared."""

from __future__ import annotations

from dovetail.errors import GraphError
from dovetail.kernels.conv import Convolution, direct, first_of
from dovetail.kernels.conv_depth import depth
from dovetail.kernels.conv_panel import panel
from dovetail.kernels.conv_point import point
from dovetail.kernels.conv_row import row
from dovetail.kernels.conv_small import small
from dovetail.kernels.conv_window import window
from dovetail.kernels.job import Job, Places
from dovetail.kernels.vector import Vectors
from dovetail.kernels.winograd import winograd
from dovetail.plan.plan import Step


def make_conv(step: Step, places: Places, vectors: Vectors) -> Job | None:
    """The job of a convolution with weights that are known when parameters are bound."""
    found = Convolution.of(step.value)
    if found is None or not found.is_served(places):
        return None
    try:
        expanse = found.expanse(places)
        # Winograd's sums are in another order: not where that matters.
        others = [] if places.strict else winograd(found, expanse, vectors)
        others += [*depth(found, expanse, vectors), *row(found, expanse, vectors), *panel(found, expanse, vectors)]
        others += [*window(found, expanse, vectors), *small(found, expanse, vectors), *point(found, expanse, vectors)]
        return first_of([*others, direct(found, expanse, vectors)])
    except GraphError:
        # Sizes that are too long to be written down.
        return None
