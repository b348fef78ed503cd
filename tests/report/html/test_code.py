"""The code in the page is the code that runs."""

from __future__ import annotations

import pytest

from dovetail.kernels.spec import TensorLocations
from dovetail.report.html import code
from dovetail.runtime.page import code_shown
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.loops import loops_of
from dovetail.targets.cpu.select import make_job
from tests.report.html.models import compiled


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert", "llama", "llama_step", "resnet", "unet"])
def test_each_kernel_has_the_text_that_it_is_compiled_from(model: str) -> None:
    """Texts are written once for all that are alike; here they are written for every step."""
    made = compiled(model)
    plan, found = made.plan, code_shown(made.target, made.plan)
    assert found is not None
    vectors = host_device()
    bound = {result for step in plan.phase("bind") for result in step.results}
    for step, number in zip(plan.steps, found.of, strict=True):
        places = TensorLocations(plan.locate, bound, target=loops_of(vectors))
        job = make_job(step, places, vectors) if step.phase == "run" else None
        if job is None:
            assert number == -1
        else:
            assert found.texts[number] == BACKEND.code.modules(job)[-1].text.strip("\n")
    assert len(set(found.texts)) == len(found.texts) < len(plan.steps)


@pytest.mark.slow
def test_a_target_without_code_has_none() -> None:
    made = compiled("bert", "reference")
    assert code_shown(made.target, made.plan) is None


def test_a_page_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "MOST_TEXTS", 2)
    made = compiled("llama")
    found = code_shown(made.target, made.plan)
    assert found is not None and len(found.texts) == 2 and max(found.of) == 1
    assert len(found.of) == len(made.plan.steps)
