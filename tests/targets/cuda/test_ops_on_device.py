"""What the simulated device runs elsewhere, on a real one: every primitive, fused ops, ONNX's own cases, files of
exporters."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library
from dovetail.adapters.onnx_backend import DovetailBackend
from dovetail.declare import FusedOp
from dovetail.ops.primitive import Primitive
from dovetail.targets.cuda.target import TARGET
from tests.frontends.onnx.test_exporters import FILES, FOLDER, TOLERANCE, entry_of, runs
from tests.targets.cuda.devices import on_device
from tests.targets.cuda.judged import expected_of
from tests.targets.cuda.laws import check_meaning
from tests.targets.cuda.test_conformance import SPREAD, node_cases
from tests.targets.cuda.test_every_primitive import EVERY, given, sample
from tests.tolerances import assert_close

pytestmark = on_device
NETWORKS = {file.partition("__")[0].removesuffix("-hf4"): file for file in FILES}
"""One file of each network that exporters wrote."""


class DeviceBackend(DovetailBackend):
    """Prepares models for the device of the machine."""

    target = TARGET


@pytest.mark.parametrize("op", EVERY, ids=[op.name for op in EVERY])
def test_a_primitive_is_near_the_reference(op: Primitive) -> None:
    value = sample(op)
    graph = Graph.of({"y": value})
    feeds = given(graph)
    got = dovetail.compile(graph, target="cuda").run(feeds)["y"]
    assert_close(got, expected_of(graph, feeds)["y"], value.dtype)


@pytest.mark.parametrize("op", library.ALL, ids=lambda op: op.name)
def test_a_fused_op_and_its_spelling_mean_the_same(op: FusedOp[...]) -> None:
    check_meaning(op, "cuda")


@pytest.mark.parametrize("name", [name for _, name in SPREAD])
def test_one_case_of_an_operator(name: str) -> None:
    from onnx.backend.test.runner import Runner

    case = node_cases()[name]
    rep = DeviceBackend.prepare(case.model)
    for inputs, expected in case.data_sets:
        Runner.assert_similar_outputs(expected, rep.run(inputs), rtol=case.rtol, atol=case.atol)


@pytest.mark.parametrize("file", NETWORKS.values())
def test_a_file_of_an_exporter_is_right_at_every_stored_size(file: str) -> None:
    program = dovetail.compile(FOLDER / file, target="cuda")
    rtol, atol = TOLERANCE[entry_of(file)["dtype"]]
    for run, stored in runs(file).items():
        found = program.run(stored["in"])
        for name, expected in stored["out"].items():
            np.testing.assert_allclose(found[name], expected, rtol=rtol, atol=atol, err_msg=f"{file} {run} {name}")
