"""Decisions do not depend on how fast a host was found to be: one model, one set of fusions, one answer of a gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import dovetail
from dovetail import Graph, models
from dovetail.declare.machine import Level, Machine
from dovetail.passes.specialize import specialize
from dovetail.report.lock import lock_of
from dovetail.report.outline import outline_of
from dovetail.targets import Target
from dovetail.targets.cpu.measure.calibration import BUILT_IN
from dovetail.targets.cpu.target import TARGET as CPU
from tests.strategies import graphs


def host(flops: float, bytes: float, launch: float) -> Target:
    """The cpu as a calibration of some host has it."""
    levels = tuple(Level(x.size, x.bytes_per_second * bytes / 1.2e10) for x in BUILT_IN.levels)
    found = replace(
        BUILT_IN, flops_per_second=flops, bytes_per_second=bytes, launch_seconds=launch, levels=levels, source="a test"
    )

    def machine(settings: object) -> Machine:
        return found

    return replace(CPU, machine=machine)


HOSTS = (host(2e10, 6e9, 5e-7), host(6e10, 1.5e10, 1.5e-6), host(3e11, 2e10, 2e-6), host(1e12, 8e10, 4e-6))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("layers", "sizes"),
    [
        (2, {"b": 1, "s": 128}),
        (2, {"b": 8, "s": 128}),
        pytest.param(6, {"b": 8, "s": 128}, marks=pytest.mark.exhaustive),
    ],
)
def test_the_lock_of_a_model_is_the_same_on_every_host(sizes: Mapping[str, int], layers: int) -> None:
    graph = specialize(models.bert(models.BertShape(layers=layers)), sizes)
    reports = [dovetail.explain(graph, target=target) for target in (CPU, *HOSTS)]
    locks = [str(lock_of(outline_of(report))) for report in reports]
    assert set(locks) == {locks[0]}
    assert len({report.predicted_seconds for report in reports}) == len(reports), "predictions are the host's"
    for report in reports:
        assert lock_of(outline_of(reports[0])).broken(outline_of(report)) == ()


@pytest.mark.exhaustive
@given(
    graphs(),
    st.tuples(st.floats(1e9, 1e13), st.floats(1e9, 1e12), st.floats(1e-8, 1e-4)),
)
def test_fusions_and_gates_do_not_depend_on_a_calibration(
    drawn: tuple[Graph, dict[str, NDArray[Any]]], figures: tuple[float, float, float]
) -> None:
    here, there = (dovetail.explain(drawn[0], target=target) for target in (CPU, host(*figures)))
    assert lock_of(outline_of(here)) == lock_of(outline_of(there))
    assert here.is_clean == there.is_clean
    assert [(m.rule, m.reason) for m in here.missed] == [(m.rule, m.reason) for m in there.missed]
