"""A kernel that was written for one step is that of another that is alike, and of no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dovetail import Graph, ops
from dovetail.ir.dtype import f32
from dovetail.ir.leaf import constant, input, param
from dovetail.ir.value import Value
from dovetail.kernels.spec import Job
from dovetail.models import BertShape, LlamaShape, bert, llama_step, resnet
from dovetail.plan.plan import Plan, make_plan
from dovetail.runtime.compile import compilation
from dovetail.runtime.request import make_request
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.select import make_job
from dovetail.targets.runtime.build import Writer
from dovetail.targets.runtime.code_cache import Ahead
from dovetail.targets.runtime.step_signature import look_of

LLAMA = LlamaShape(layers=3, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=100)
MODELS: dict[str, Callable[[], Graph]] = {
    "bert": lambda: bert(BertShape(layers=3, hidden=32, heads=4, inner=64, vocabulary=50, positions=16)),
    "llama step": lambda: llama_step(LLAMA, batch=1, past=4),
    "resnet": lambda: resnet(batch=1, image=64),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_job_that_is_carried_over_is_what_would_be_written(name: str) -> None:
    plan = compilation(MODELS[name](), make_request(target="cpu")).plan
    writer = Writer(plan)
    jobs = {step: writer.job(step) for step in plan.phase("run")}
    kernels = {id(job.kernel) for job in jobs.values() if isinstance(job, Job)}
    assert len(kernels) < len(jobs)
    for step, job in jobs.items():
        if isinstance(job, Job):
            assert job == make_job(step, writer.places, writer.vectors), step.name


def steps_of(*outputs: Value) -> tuple[Plan, Writer]:
    plan = make_plan(Graph.of({f"y{i}": v for i, v in enumerate(outputs)}), target=CPU)
    return plan, Writer(plan)


def test_steps_of_other_parameters_are_alike_and_their_kernel_is_printed_once() -> None:
    x = input("x", f32[4, 8])
    plan, writer = steps_of(*[x @ param(f"w{i}", f32[8, 8]) for i in range(2)])
    one, two = (writer.job(step) for step in plan.phase("run"))
    assert isinstance(one, Job) and isinstance(two, Job)
    assert one.kernel is two.kernel and one.points != two.points
    ahead = Ahead(None)
    assert ahead.modules(one) is ahead.modules(two)


def half(x: Value, index: int) -> Value:
    return ops.exp(ops.part(x, axis=-1, index=index, parts=2))


PAIRS: dict[str, Callable[[Value, Value], tuple[Value, Value]]] = {
    "constants": lambda x, w: (x * constant(2.0, f32), x * constant(3.0, f32)),
    "constness": lambda x, w: (x @ w, x @ x),
    "views": lambda x, w: (x @ w, x @ ops.permute(w, order=(-1, -2))),
    "aliasing": lambda x, w: (x + w, x + x),
    "places": lambda x, w: (half(x, 0), half(x, 1)),
}


@pytest.mark.parametrize("what", PAIRS)
def test_what_a_kernel_is_written_by_tells_steps_apart(what: str) -> None:
    plan, writer = steps_of(*PAIRS[what](input("x", f32[8, 8]), param("w", f32[8, 8])))
    looks = [look_of(step, writer.places) for step in plan.phase("run")]
    assert len(looks) == len(set(looks)) == 2
