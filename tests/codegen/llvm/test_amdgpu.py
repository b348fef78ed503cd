"""Kernels for AMD's GPUs: all threads in lockstep, by warps of 64 lanes where a GPU has them, and as machine code."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dovetail import Graph, Value, library, ops
from dovetail.codegen.llvm.amdgpu.machine import Amdgpu
from dovetail.codegen.llvm.amdgpu.printer import module
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.nvptx import ptx
from dovetail.errors import GraphError, UnsupportedError
from dovetail.ir.dtype import bf16, f16, f32, i32, u32, u64
from dovetail.kernels.matrix_instruction import MFMA_F16, MFMA_I8, WMMA_11, MatrixInstruction
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from tests.codegen.amd import DEVICES, assembled, missing
from tests.targets.cuda.graphs import CASES, Case, x_of
from tests.targets.cuda.images import image, weights
from tests.targets.cuda.judged import check, feeds_of, in_lockstep

KNOWN = (
    "chains_f16", "chains_f32", "elementwise_bf16", "map_any", "moves_bf16_33x70", "norm_any", "norms_f32_7x12",
    "norms_f32_9x100", "norms_f32_6x768", "norms_f32_3x1025", "norms_f32_2x5003", "reductions_f32_3x40x70",
    "reductions_i32_3x40x70", "sum_any", "turn_any",
)  # fmt: skip
"""Of the cases for NVIDIA's."""


def _attention(queries: int, heads: int = 8, keys: int = 300) -> Value:
    """Of f32, without matrix instructions."""
    q, k, v = (x_of(f32, 1, heads, n, 64, name=name) for name, n in (("q", queries), ("k", keys), ("v", keys)))
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
        "sort": ops.sort(x_of(f32, 3, 700), axis=-1, descending=True)[0],
        "scatter": ops.scatter_nd(
            x_of(f32, 300, 12), x_of(i32, 7, 1, name="i"), x_of(f32, 7, 12, name="u"), reduction="none"
        ),
        "gemv": ops.matmul(x_of(f32, 1, 512), x_of(f32, 512, 96, name="w")),
        "gemm": library.linear(x, w, b, act="gelu"),
        "gemm_f16": library.linear(*narrow[f16], act="gelu"),
        "gemm_bf16": ops.matmul(*narrow[bf16][:2]),
        "gemm_transposed": ops.matmul(narrow[f16][0], ops.permute(x_of(f16, 72, 136, name="t"), order=(-1, -2))),
        "gemm_of_a_convolution": library.conv_bias_act(
            image(f16, 1, 32, 9, 9, channels_last=True),
            weights(f16, 32, 32, 3, 3),
            x_of(f16, 32, 1, 1, name="b"),
            act="relu",
            padding=(1, 1, 1, 1),
        ),
        "gemm_by_parameters": ops.matmul(x_of(f16, 100, 136), weights(f16, 136, 72)),
        "gemm_of_odd_sizes": ops.matmul(x_of(f16, 37, 45), x_of(f16, 45, 51, name="w")),
    }


FAMILIES = families()


def _kernels(value: Value, architecture: str) -> list[GpuKernel]:
    plan = make_plan(Graph.of({"y": value}), target="cuda")
    device = DEVICES.get(architecture, H200)
    return [kernel for _, kernels in steps_of(plan, device=device) for kernel in kernels or ()]


@pytest.mark.parametrize("architecture", ["gfx942", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("name", FAMILIES)
def test_families_do_what_the_graph_means(name: str, architecture: str) -> None:
    case = Case({"y": FAMILIES[name]}, scale=8.0)
    feeds = feeds_of(Graph.of(case.outputs), {})
    check(case, in_lockstep(case, feeds, device=DEVICES[architecture]), feeds)


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ["gfx1100", "gfx1201"])
def test_attention_of_several_queries_has_warps_of_32(architecture: str) -> None:
    """Two heads, whose keys are in two parts, the second partly full."""
    case = Case({"y": _attention(20, heads=2, keys=70)}, scale=8.0)
    feeds = feeds_of(Graph.of(case.outputs), {})
    check(case, in_lockstep(case, feeds, device=DEVICES[architecture]), feeds)
    assert missing() or all(assembled(made.text, architecture) for made in _kernels(case.outputs["y"], architecture))
    assert not _kernels(case.outputs["y"], "gfx942"), "it declines warps of 64"


def test_attention_by_other_instructions_declines_the_device() -> None:
    q, k, v = (x_of(f16, 1, 8, n, 64, name=name) for name, n in (("q", 40), ("k", 300), ("v", 300)))
    value = library.attention(q, k, v, scale=0.125)
    assert _kernels(value, "sm_90a") and not _kernels(value, "gfx942") and not _kernels(value, "gfx1100")


@pytest.mark.parametrize("name", KNOWN)
def test_cases_do_what_the_graph_means(name: str) -> None:
    case = CASES[name]
    for sizes in case.sizes:
        feeds = feeds_of(Graph.of(case.outputs), sizes)
        check(case, in_lockstep(case, feeds, device=DEVICES["gfx942"]), feeds)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=f"LLVM makes no code for AMD GPUs: {missing()}")
@pytest.mark.parametrize("architecture", DEVICES)
@pytest.mark.parametrize("name", FAMILIES)
def test_families_become_machine_code(name: str, architecture: str) -> None:
    made = _kernels(FAMILIES[name], architecture)
    assert made, "a family takes it"
    for kernel in made:
        assert assembled(kernel.text, architecture)[:4] == b"\x7fELF"
        code = assembled(kernel.text, architecture, is_object=False).decode()
        assert f".amdhsa_kernel {kernel.kernel.name}" in code
        assert ".private_segment_fixed_size: 0" in code, "nothing is kept outside of registers"
        assert ".vgpr_spill_count: 0" in code
        multiplies = "v_mfma_f32_16x16x16" in code or "v_wmma_f32_16x16x16" in code
        assert multiplies is name.startswith("gemm_")


def test_a_kernel_is_printed_for_the_warps_that_it_was_scheduled_for() -> None:
    narrow, wide = (_kernels(FAMILIES["reduce"], name)[0].kernel for name in ("gfx1100", "gfx942"))
    for kernel, architecture in ((narrow, "gfx942"), (wide, "gfx1201")):
        with pytest.raises(GraphError, match="warps of"):
            module(kernel, {}, architecture)
    with pytest.raises(GraphError, match="warps of 64"):
        ptx.module(wide, {})
    with pytest.raises(UnsupportedError, match="gfx803"):
        module(wide, {}, "gfx803")


@pytest.mark.parametrize(
    ("architecture", "foreign"), [("gfx942", WMMA_11[0]), ("gfx1100", MFMA_F16), ("gfx90a", MFMA_I8)]
)
def test_an_architecture_has_its_own_matrix_instructions(architecture: str, foreign: MatrixInstruction) -> None:
    with pytest.raises(GraphError, match=foreign.name):
        Amdgpu(architecture).multiply(Builder(), foreign, "%a", "%b", "%s")


def test_what_only_nvidia_has_is_an_error() -> None:
    """Tensor maps and clusters, as kernels for an H200 have them."""
    graph = ops.matmul(x_of(f16, 512, 256), x_of(f16, 256, 512, name="w"))
    (made,) = _kernels(graph, "sm_90a")
    with pytest.raises(GraphError, match="gfx1100"):
        module(made.kernel, {}, "gfx1100")


def test_ballots_have_a_bit_for_each_lane() -> None:
    for architecture, lanes in (("gfx942", 64), ("gfx1100", 32)):
        t = Builder()
        Amdgpu(architecture).ballot(t, "%x", u64)
        assert f"@llvm.amdgcn.ballot.i{lanes}(i1 %x)" in "\n".join(map(str, t.lines))
    with pytest.raises(GraphError, match="64 lanes"):
        Amdgpu("gfx942").ballot(Builder(), "%x", u32)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=f"LLVM makes no code for AMD GPUs: {missing()}")
def test_weights_that_are_known_are_read_along_k() -> None:
    """They are packed when they are bound: four elements of a lane are one word of 8 bytes."""
    (known,), (given,) = (_kernels(FAMILIES[name], "gfx942") for name in ("gemm_by_parameters", "gemm_bf16"))
    assert known.packed and not given.packed
    reads = [assembled(made.text, "gfx942", is_object=False).decode().count("ds_read_u16") for made in (known, given)]
    assert reads[0] == 0 < reads[1]
