"""What is compiled while a graph is lowered is what its kernels call afterwards."""

from __future__ import annotations

import pytest

from dovetail import Builder, Graph, ops
from dovetail.dtypes import f32
from dovetail.kernels.spec import Job, Template
from dovetail.targets.cpu.gemm.f32.early import early_products
from dovetail.targets.cpu.isa import host_device
from dovetail.train import SGD
from dovetail.train.step import step_graph
from tests.kernels.native import native_of


def _two_layers() -> Graph:
    b = Builder("layers")
    hidden = ops.relu(b.input("x", f32[64, 96]) @ b.param("u", f32[96, 128]))
    y = hidden @ b.param("v", f32[128, 48])
    b.output("loss", ops.reshape(ops.reduce_mean(y * y, axes=(-2, -1)), ()))
    return b.graph()


def _called(graph: Graph) -> set[str]:
    jobs = [job for part in native_of(graph).sections for job in part.jobs if isinstance(job, Job)]
    return {f.name for job in jobs if isinstance(job.kernel, Template) for f in job.kernel.shared}


@pytest.mark.slow
def test_a_training_step_multiplies_by_weights_of_the_run() -> None:
    graph = step_graph(_two_layers(), SGD(), loss="loss").graph
    early = {f.name for f in early_products(graph.values, host_device())}
    called = {name for name in _called(graph) if name.startswith(("gemm_pair_rows_", "gemm_pair_columns_"))}
    # The gradients of weights among them: their left operand is contiguous along its rows.
    assert called and any(name.startswith("gemm_pair_columns_") for name in called)
    assert called <= early <= _called(graph)


def test_a_model_multiplies_by_packed_weights() -> None:
    (block,) = early_products(_two_layers().values, host_device())
    assert block.name in _called(_two_layers())


def test_weights_that_are_computed_before_a_run_are_packed_too() -> None:
    b = Builder("scaled")
    b.output("y", b.input("x", f32[64, 96]) @ (b.param("w", f32[96, 48]) * 0.5))
    (block,) = early_products(b.graph().values, host_device())
    assert block.name in _called(b.graph())
