"""Vectors of which each lane of a warp has the same number in a row."""

from __future__ import annotations

from dataclasses import replace

from dovetail.kernels.spec import TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.gpu.loops import SHAPE


def with_even_vectors(locations: TensorLocations, step: Step, width: int) -> TensorLocations:
    """Half vectors where these give each lane the same number in rows of `width` elements, and whole ones do not: with
    48 vectors in a row, half of the lanes would wait for the others."""
    policy, lanes = locations.target.tiles, SHAPE.lanes
    item = step.results[0].dtype.itemsize
    vectors = width * item // policy.vector_bytes
    if vectors < lanes or vectors % lanes == 0 or 2 * vectors % lanes:
        return locations
    half = replace(policy, vector_bytes=policy.vector_bytes // 2)
    return replace(locations, target=replace(locations.target, tiles=half))


__all__ = ["with_even_vectors"]
