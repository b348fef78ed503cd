"""Which kernel a step becomes: the first archetype that takes it."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.kernels.job import Job, Places
from dovetail.kernels.map import make_map
from dovetail.plan.plan import Step

ARCHETYPES: tuple[Callable[[Step, Places], Job | None], ...] = (make_map,)


def make_job(step: Step, places: Places) -> Job | None:
    """The job of a step, or None where it has to run on the host."""
    for archetype in ARCHETYPES:
        job = archetype(step, places)
        if job is not None:
            return job
    return None
