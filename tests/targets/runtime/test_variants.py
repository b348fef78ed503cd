"""Which kernel serves a step, as reports tell it."""

from __future__ import annotations

import pytest

import dovetail
from dovetail import Graph, f32, ops
from dovetail.ir.leaf import input
from dovetail.plan.plan import make_plan
from dovetail.report.profile_text import as_text as profile_text
from dovetail.report.text import as_text
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.runtime.variants import FORMS, forms
from tests.kernels.convolving import WIDE, around, normal, on_a_machine_of, params_of, pixel
from tests.targets.cpu.conv.test_epilogue import KERNELS, made


def form_of(graph: Graph, **sizes: int) -> str | None:
    (found,) = forms(make_plan(graph, target=CPU), sizes).values()
    return found


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_of_convolutions_has_a_word(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    on_a_machine_of(WIDE, monkeypatch)
    assert form_of(made(kernel)) == FORMS[kernel.split(" ")[0]]


def test_sizes_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine_of(WIDE, monkeypatch)
    graph = around(("n", 64, "h", "w"), 64)
    assert form_of(graph, n=1, h=56, w=56) == "winograd 4×4"
    assert form_of(graph, n=1, h=14, w=14) == "winograd 2×2"
    assert form_of(graph, n=1, h=7, w=7) == "small"


def test_without_a_choice_there_is_no_word_and_without_a_kernel_none() -> None:
    assert form_of(Graph.of(ops.exp(input("x", f32[4])))) == ""
    assert form_of(Graph.of(ops.det(input("x", f32[3, 3])))) is None


def test_reports_and_profiles_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine_of(WIDE, monkeypatch)
    graph = pixel((1, 128, 14, 14), 128)
    program = dovetail.compile(graph, cache="off").bind(params_of(graph))
    assert [k.form for k in program.report.kernels if k.phase == "run"] == ["panel"]
    assert "conv_bias_act (panel)" in as_text(program.report, everything=True)
    assert "panel" not in as_text(program.report), "what depends on the machine is told to those who ask"
    measured = program.profile({"x": normal(1, 128, 14, 14)}, runs=1)
    assert "conv_bias_act (panel) f32[1, 128, 14, 14]" in profile_text("net", measured, 3)
