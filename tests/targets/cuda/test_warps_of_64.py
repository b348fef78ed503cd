"""Kernels for AMD's GPUs: all threads in lockstep, with warps of 64 lanes where a GPU has them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dovetail import Graph, Value, library, ops
from dovetail.ir.dtype import bf16, f16, f32, i32
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.runs.run import steps_of
from tests.codegen.amd import DEVICES, assembled, missing
from tests.targets.cuda.graphs import CASES, Case, x_of
from tests.targets.cuda.judged import check, feeds_of, in_lockstep

KNOWN = (
    "chains_f16", "chains_f32", "elementwise_bf16", "map_any", "moves_bf16_33x70", "norm_any", "norms_f32_7x12",
    "norms_f32_9x100", "norms_f32_6x768", "norms_f32_3x1025", "norms_f32_2x5003", "reductions_f32_3x40x70",
    "reductions_i32_3x40x70", "sum_any", "turn_any",
)  # fmt: skip
"""Of the cases for NVIDIA's."""


def _attention(queries: int) -> Value:
    """Of f32 and eight heads, without matrix instructions."""
    q, k, v = (x_of(f32, 1, 8, n, 64, name=name) for name, n in (("q", queries), ("k", 300), ("v", 300)))
    return library.attention(q, k, v, scale=0.125)


def families() -> Mapping[str, Value]:
    """Ten families of kernels."""
    x, w, b = x_of(f32, 40, 72), x_of(f32, 72, 48, name="w"), x_of(f32, 48, name="b")
    narrow = {d: (x_of(d, 100, 136), x_of(d, 136, 72, name="w"), x_of(d, 72, name="b")) for d in (f16, bf16)}
    whole = {"reverse": False, "exclusive": False}
    return {
        "map": library.gelu(x_of(f32, 9, 1000) + x_of(f32, 9, 1000, name="y")),
        "rows": library.rms_norm(x_of(f16, 9, 768), x_of(f16, 768, name="g"), eps=1e-5),
        "reduce": ops.reduce_sum(x_of(f32, 5, 3000), axes=(-1,)),
        "softmax": library.softmax(x_of(f32, 9, 500), axis=-1),
        "layer_norm": library.layer_norm(x_of(f32, 9, 768), x_of(f32, 768, name="g"), eps=1e-5),
        "move": ops.concat(ops.permute(x_of(f32, 70, 33), order=(-1, -2)), x_of(f32, 33, 70, name="y"), axis=-1),
        "gather": ops.gather(x_of(f32, 300, 64), x_of(i32, 7, name="i"), axis=0),
        "scan": ops.cum_sum(x_of(f32, 3, 3000), axis=-1, **whole),
        "scan_of_long_rows": ops.cum_sum(x_of(f32, 1, 70_000), axis=-1, **whole),
        "attention_of_one_query": _attention(1),
        "gemv": ops.matmul(x_of(f32, 1, 512), x_of(f32, 512, 96, name="w")),
        "gemm": library.linear(x, w, b, act="gelu"),
        "gemm_f16": library.linear(*narrow[f16], act="gelu"),
        "gemm_bf16": ops.matmul(*narrow[bf16][:2]),
        "gemm_transposed": ops.matmul(narrow[f16][0], ops.permute(x_of(f16, 72, 136, name="t"), order=(-1, -2))),
        "gemm_of_odd_sizes": ops.matmul(x_of(f16, 37, 45), x_of(f16, 45, 51, name="w")),
    }


FAMILIES = families()


@pytest.mark.parametrize("architecture", ["gfx942", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("name", FAMILIES)
def test_families_do_what_the_graph_means(name: str, architecture: str) -> None:
    case = Case({"y": FAMILIES[name]}, scale=8.0)
    feeds = feeds_of(Graph.of(case.outputs), {})
    check(case, in_lockstep(case, feeds, device=DEVICES[architecture]), feeds)


@pytest.mark.parametrize("name", KNOWN)
def test_cases_do_what_the_graph_means(name: str) -> None:
    case = CASES[name]
    for sizes in case.sizes:
        feeds = feeds_of(Graph.of(case.outputs), sizes)
        check(case, in_lockstep(case, feeds, device=DEVICES["gfx942"]), feeds)


@pytest.mark.skipif(bool(missing()), reason=f"LLVM makes no code for AMD GPUs: {missing()}")
@pytest.mark.parametrize("architecture", DEVICES)
@pytest.mark.parametrize("name", FAMILIES)
def test_families_become_machine_code(name: str, architecture: str) -> None:
    plan = make_plan(Graph.of({"y": FAMILIES[name]}), target="cuda")
    made = [kernel for _, kernels in steps_of(plan, device=DEVICES[architecture]) for kernel in kernels or ()]
    assert made, "a family takes it"
    for kernel in made:
        assert assembled(kernel.text, architecture)[:4] == b"\x7fELF"
        code = assembled(kernel.text, architecture, is_object=False).decode()
        assert f".amdhsa_kernel {kernel.kernel.name}" in code
        assert ".private_segment_fixed_size: 0" in code, "nothing is kept outside of registers"
        assert ".vgpr_spill_count: 0" in code
        multiplies = "v_mfma_f32_16x16x16" in code or "v_wmma_f32_16x16x16" in code
        assert multiplies is name.startswith("gemm_")
