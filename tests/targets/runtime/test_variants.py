"""Which kernel serves a step, as reports tell it."""

from __future__ import annotations

import pytest

import dovetail
from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input
from dovetail.plan.plan import make_plan
from dovetail.report.profile_text import as_text as profile_text
from dovetail.report.text import as_text
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.runtime.building.variants import variants
from tests.kernels.convolving import WIDE, around, network, normal, on_a_machine_of, params_of, pixel
from tests.targets.cpu.conv.test_epilogue import KERNELS, made

WORDS = {
    "conv": "direct",
    "depth_conv": "depthwise",
    "conv1d": "conv1d",
    "panel_conv": "pointwise_packed",
    "point_conv": "pointwise",
    "row_conv": "few_channels",
    "small_conv": "few_pixels",
    "window_conv": "few_pixels_kxk",
    "winograd_2x4": "winograd 2×4",
    "winograd_2": "winograd 2×2",
}
"""The variant by the stem of its kernel's name."""


def variant_of(graph: Graph, **sizes: int) -> str | None:
    (found,) = variants(make_plan(graph, target=CPU), sizes, BACKEND).values()
    return found.variant


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_of_convolutions_has_a_word(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    on_a_machine_of(WIDE, monkeypatch)
    assert variant_of(made(kernel)) == WORDS[kernel.split(" ")[0]]


@pytest.mark.slow
def test_sizes_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine_of(WIDE, monkeypatch)
    graph = around(("n", 64, "h", "w"), 64)
    assert variant_of(graph, n=1, h=56, w=56) == "winograd 2×4"
    assert variant_of(graph, n=1, h=14, w=14) == "winograd 2×2"
    assert variant_of(graph, n=1, h=7, w=7) == "few_pixels"


@pytest.mark.parametrize("wide", [3, 4, 5, 6])
@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (64, 1), (64, 64)])
def test_estimates_below_a_window_have_a_kernel(channels: int, groups: int, wide: int) -> None:
    graph = network(("n", channels, 1, "w"), (channels, channels // groups, 1, 7), groups=groups)
    assert variant_of(graph, n=1, w=wide) is not None


def test_without_a_choice_there_is_no_word_and_without_a_kernel_none() -> None:
    assert variant_of(Graph.of(ops.exp(input("x", f32[4])))) == ""
    assert variant_of(Graph.of(ops.det(input("x", f32[3, 3])))) is None


@pytest.mark.slow
def test_reports_and_profiles_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine_of(WIDE, monkeypatch)
    graph = pixel((1, 128, 14, 14), 128)
    program = dovetail.compile(graph, cache="off").bind(params_of(graph))
    assert [k.form for k in program.report.kernels if k.phase == "run"] == ["pointwise_packed"]
    assert "conv_bias_act (pointwise_packed)" in as_text(program.report, everything=True)
    assert "pointwise_packed" not in as_text(program.report), "what depends on the machine is shown on request"
    measured = program.profile({"x": normal(1, 128, 14, 14)}, runs=1)
    assert "conv_bias_act (pointwise_packed) f32[1, 128, 14, 14]" in profile_text("net", measured, 3)
