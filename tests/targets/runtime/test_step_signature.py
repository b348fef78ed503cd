"""The kernel of one step serves another with an equal signature, and no other."""

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
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.runtime.building.build import JobBuilder, builder_of
from dovetail.targets.runtime.building.code_cache import BackgroundCompiler
from dovetail.targets.runtime.building.step_signature import step_signature

LLAMA = LlamaShape(layers=3, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=100)
MODELS: dict[str, Callable[[], Graph]] = {
    "bert": lambda: bert(BertShape(layers=3, hidden=32, heads=4, inner=64, vocabulary=50, positions=16)),
    "llama step": lambda: llama_step(LLAMA, batch=1, past=4),
    "resnet": lambda: resnet(batch=1, image=64),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", MODELS)
def test_a_job_that_is_carried_over_is_what_would_be_written(name: str) -> None:
    plan = compilation(MODELS[name](), make_request(target="cpu")).plan
    builder = builder_of(plan, BACKEND)
    jobs = {step: builder.job(step) for step in plan.phase("run")}
    kernels = {id(job.kernel) for job in jobs.values() if isinstance(job, Job)}
    assert len(kernels) < len(jobs)
    for step, job in jobs.items():
        if isinstance(job, Job):
            assert job == BACKEND.select(step, builder.locations), step.name


def steps_of(*outputs: Value) -> tuple[Plan, JobBuilder]:
    plan = make_plan(Graph.of({f"y{i}": v for i, v in enumerate(outputs)}), target=CPU)
    return plan, builder_of(plan, BACKEND)


def test_steps_of_other_parameters_are_alike_and_their_kernel_is_printed_once() -> None:
    x = input("x", f32[4, 8])
    plan, builder = steps_of(*[x @ param(f"w{i}", f32[8, 8]) for i in range(2)])
    one, two = (builder.job(step) for step in plan.phase("run"))
    assert isinstance(one, Job) and isinstance(two, Job)
    assert one.kernel is two.kernel and one.bindings != two.bindings
    background = BackgroundCompiler(BACKEND.code, None)
    assert background.modules(one) is background.modules(two)


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
    plan, builder = steps_of(*PAIRS[what](input("x", f32[8, 8]), param("w", f32[8, 8])))
    signatures = [step_signature(step, builder.locations) for step in plan.phase("run")]
    assert len(signatures) == len(set(signatures)) == 2


def test_all_of_a_tensor_is_no_view_where_views_are_not_seen() -> None:
    split, plain = ops.neg(input("a", f32[2, 4, 8])), ops.neg(input("b", f32[2, 32]))
    plan, builder = steps_of(ops.exp(ops.merge(split, axis=-1)), ops.exp(plain))
    one, two = (step for step in plan.phase("run") if step.value.op is ops.exp)
    for sees_views in (False, True):
        found = [step_signature(step, builder.locations, sees_views=sees_views) for step in (one, two)]
        assert (found[0] == found[1]) is not sees_views
