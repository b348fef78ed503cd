"""Launches that several steps share on GPUs: stages of a cluster, prologues of products with few rows."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.ir.dtype import bf16, f16, f32, i64
from dovetail.ir.leaf import input, param
from dovetail.ir.value import Value
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Alloc, ClusterBarrier, Kernel
from dovetail.passes.claims import Claims
from dovetail.plan.plan import Plan, make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import CudaGraph, steps_of
from dovetail.targets.gpu.stored import from_bytes, to_bytes
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.simulated import SimulatedDriver

CLUSTERS = replace(H200, cluster=8, dependent_intensity=inf)


def _normed(rows: int, width: int, name: str = "x") -> Value:
    return library.rms_norm(input(name, bf16[rows, width]), param("gain", bf16[width]), eps=1e-6)


def _two_readers() -> dict[str, Value]:
    normed = _normed(1, 256)
    return {"y": normed @ param("w", bf16[256, 64]), "z": normed}


def _heads() -> dict[str, Value]:
    """Rows of one product, some of which are normed and turned, as before an attention."""
    rows = input("x", bf16[6, 64])
    q, k = (library.rms_norm(rows * scale, param(f"gain{scale}", bf16[64]), eps=1e-6) for scale in (2.0, 3.0))
    turned = [ops.concat(ops.neg(r[:, 32:]), r[:, :32], axis=-1) for r in (q, k)]
    return {"q": library.softmax(turned[0]), "k": turned[1] + k}


def _in_place() -> dict[str, Value]:
    """Sums that are written over an operand."""
    x = ops.gather(param("table", f32[10, 64]), input("ids", i64[3]), axis=0)
    return {"y": library.layer_norm(x + 1.0, param("gain", f32[64]), param("shift", f32[64]), eps=1e-5) * 2.0}


PROLOGUES: dict[str, Value] = {
    "one_row": _normed(1, 1024) @ param("w", bf16[1024, 72]),
    "rows": _normed(5, 256) @ param("w", bf16[256, 48]),
    "two_streams": library.swiglu(_normed(8, 264), param("g", bf16[264, 40]), param("u", bf16[264, 40])),
    "long_rows": library.layer_norm(
        input("x", f16[2, 2048]), param("gain", f16[2048]), param("shift", f16[2048]), eps=1e-5
    )
    @ param("w", f16[2048, 24]),
}
CHAINS = {"heads": _heads(), "in_place": _in_place()}


def _plan(outputs: dict[str, Value], target: str | Claims = "cuda") -> Plan:
    return make_plan(Graph.of(outputs), target=target)


def _kernels(plan: Plan) -> list[Kernel]:
    return [made.kernel for _, kernels in steps_of(plan, device=CLUSTERS) for made in kernels or ()]


def _has_prologue(kernel: Kernel) -> bool:
    return any(isinstance(s, Alloc) and s.pointer == "prologue" for s in everything(kernel.body))


def _judged(outputs: dict[str, Value], target: str | Claims = "cuda") -> None:
    """Runs of a graph on the simulated device are near the reference."""
    graph = Graph.of(outputs)
    random = np.random.default_rng(3)
    drawn: dict[str, Any] = {}
    for v in (*graph.inputs, *graph.parameters):
        shape = tuple(int(str(n)) for n in v.shape)
        # Sums stay near one, whose squares f16 can add up.
        scale = shape[0] ** -0.5 if len(shape) == 2 else 1.0
        content = random.integers(0, 9, shape) if v.dtype.is_integer else random.normal(size=shape) * scale
        drawn[str(v.attrs["name"])] = content.astype(v.dtype.numpy)
    params = {str(v.attrs["name"]): drawn.pop(str(v.attrs["name"])) for v in graph.parameters}
    device = SimulatedDriver()
    device.description = CLUSTERS
    wanted = evaluate(graph, drawn, params=params, lift=True)
    runner = CudaGraph(make_plan(graph, target=target), lambda: device).bind(params)
    for _ in range(2):
        for name, found in runner.run(drawn).items():
            error = np.linalg.norm(found.astype(np.float64) - wanted[name])
            assert error <= 1e-2 * np.linalg.norm(wanted[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("name", PROLOGUES)
def test_a_product_with_few_rows_computes_the_norm_before_it(name: str) -> None:
    (kernel,) = _kernels(_plan({"y": PROLOGUES[name]}))
    assert _has_prologue(kernel)
    _judged({"y": PROLOGUES[name]})


@pytest.mark.slow
def test_a_norm_that_others_read_is_also_written() -> None:
    (kernel,) = _kernels(_plan(_two_readers()))
    assert _has_prologue(kernel) and len(kernel.written) == 2
    _judged(_two_readers())


@pytest.mark.exhaustive
def test_norms_after_residuals_join_the_products_that_follow() -> None:
    def linear(x: Value, name: str, size: int) -> Value:
        return library.linear(x, param(name, f16[x.shape[-1], size]), param(f"{name}.bias", f16[size]), act="gelu")

    x = input("x", f16[7, 128])
    for layer in range(2):
        y = linear(linear(x, f"up{layer}", 160), f"down{layer}", 128)
        gain, shift = (param(f"{name}{layer}", f16[128]) for name in ("gain", "shift"))
        x = library.residual_layer_norm(x, y, gain, shift, eps=1e-5)
    assert [_has_prologue(k) for k in _kernels(_plan({"y": x}, CLAIMS))] == [False, False, True, False, False]
    _judged({"y": x}, CLAIMS)
    # Without rules for memory, a product may be written over what its prologue would read: it takes none.
    _judged({"y": x})


def _residuals(layers: int, width: int = 128) -> dict[str, Value]:
    """Layers of one row as GPT-2 has them: norms of sums that the next residual reads too."""
    x = input("x", bf16[1, width])
    y = library.layer_norm(x, param("gain", bf16[width]), param("shift", bf16[width]), eps=1e-5)
    for layer in range(layers):
        gain, shift, b = (param(f"{name}{layer}", bf16[width]) for name in ("gain", "shift", "b"))
        inner = library.linear(y, param(f"up{layer}", bf16[width, 64]), param(f"c{layer}", bf16[64]), act="gelu")
        down = library.linear(inner, param(f"down{layer}", bf16[64, width]), b)
        y, x = library.residual_layer_norm(x, down, gain, shift, eps=1e-5, keep_sum=True)
    return {"y": y, "x": x}


@pytest.mark.slow
def test_norms_that_keep_their_sum_join_the_products_that_follow() -> None:
    """The first block alone writes the sum, which all blocks have in shared memory."""
    outputs = _residuals(2)
    assert [_has_prologue(k) for k in _kernels(_plan(outputs, CLAIMS))] == [True, False, True, False, False]
    _judged(outputs, CLAIMS)
    # Blocks would find the sum in memory that others still read.
    x, w = input("x", bf16[1, 128]), param("w", bf16[128, 128])
    y, total = library.residual_layer_norm(x @ w, x, param("g", bf16[128]), eps=1e-5, keep_sum=True)
    added = library.matmul_add(y, param("v", bf16[128, 128]), total)
    assert not any(map(_has_prologue, _kernels(_plan({"y": added}, CLAIMS))))
    _judged({"y": added}, CLAIMS)


@pytest.mark.exhaustive
def test_sums_that_one_block_sends_reach_all_blocks_of_the_next_pass() -> None:
    graph, device = Graph.of(_residuals(4, 64)), replace(CLUSTERS, multiprocessors=2, cooperative="on")
    found: list[Any] = []
    for description in (device, replace(device, cooperative="off")):
        kernels = [k for _, own in steps_of(make_plan(graph, target=CLAIMS), device=description) for k in own or ()]
        assert any(k.kernel.passes > 1 for k in kernels) is (description is device)
        driver = SimulatedDriver()
        driver.description = description
        random = np.random.default_rng(3)
        drawn = {str(v.attrs["name"]): random.normal(size=[*map(int, map(str, v.shape))]) for v in graph.parameters}
        params = {name: (x * len(x) ** (0.5 - x.ndim / 2)).astype(bf16.numpy) for name, x in drawn.items()}
        runner = CudaGraph(make_plan(graph, target=CLAIMS), lambda driver=driver: driver).bind(params)
        x = {"x": np.linspace(-1, 1, 64).reshape(1, 64).astype(bf16.numpy)}
        run = runner.run(x)
        found.append([run["y"], run["x"]])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_step_in_place_is_no_prologue_and_its_operand_stays_where_it_is() -> None:
    h = input("x", bf16[4, 128]) @ param("w", bf16[128, 128])
    _judged({"y": ops.exp(h) @ param("v", bf16[128, 64])}, CLAIMS)
    _judged(CHAINS["in_place"], CLAIMS)


@pytest.mark.slow
def test_threads_wait_at_one_barrier() -> None:
    """LLVM copies a barrier into the branches before it unless told: a warp whose threads differ would never go on."""
    found = 0
    for outputs in ({"y": ops.tanh(ops.tanh(input("x", f32[6, 8])))}, *CHAINS.values()):
        for _, kernels in steps_of(_plan(outputs), device=CLUSTERS):
            for made in kernels or ():
                barriers = sum(isinstance(s, ClusterBarrier) for s in everything(made.kernel.body))
                assert to_ptx(made.text, "sm_90a").count("barrier.cluster.arrive") == barriers
                found += barriers
    assert found


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAINS)
def test_small_steps_share_a_launch(name: str) -> None:
    plan = _plan(CHAINS[name])
    (kernel,) = _kernels(plan)
    assert len(plan.phase("run")) > 2 and kernel.launch is not None and kernel.launch.cluster == 8
    _judged(CHAINS[name])


@pytest.mark.slow
def test_stages_that_need_nothing_of_each_other_do_not_wait() -> None:
    x, y = input("x", f32[4, 64]), input("y", f32[4, 64])
    rows = [library.rms_norm(v, param(f"gain{i}", f32[64]), eps=1e-6) for i, v in enumerate((x, y))]
    waits = {
        "apart": {"y": rows[0], "z": rows[1]},
        "after": {"y": ops.merge(ops.permute(ops.split(rows[0], axis=-1, size=8), order=(-2, -3, -1)), axis=-1)},
    }
    counts = {}
    for name, outputs in waits.items():
        (kernel,) = _kernels(_plan(outputs))
        counts[name] = sum(isinstance(s, ClusterBarrier) for s in everything(kernel.body))
        _judged(outputs)
    assert counts == {"apart": 0, "after": 1}


def test_large_steps_and_other_devices_share_nothing() -> None:
    large = _normed(512, 256, "large")
    outputs: dict[str, Value] = {"y": large * 2.0, "z": ops.permute(large, order=(-1, -2)) + 1.0}
    assert all(k.launch is not None and k.launch.cluster == 1 for k in _kernels(_plan(outputs)))
    without = steps_of(_plan(CHAINS["heads"]), device=replace(CLUSTERS, cluster=0))
    assert all(kernels for _, kernels in without)


def test_shared_launches_are_stored() -> None:
    plan = _plan(CHAINS["heads"])
    steps = tuple([kernels for _, kernels in steps_of(plan, device=CLUSTERS)])
    assert None in steps
    ptx = {made.text: "code" for kernels in steps for made in kernels or ()}
    content = to_bytes(plan, steps, ptx)
    assert content is not None
    again, _ = from_bytes(plan, content)
    assert [kernels is None for kernels in again] == [kernels is None for kernels in steps]


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [CHAINS["heads"], {"y": PROLOGUES["two_streams"]}], ids=["stages", "prologue"])
def test_they_assemble_without_spills(outputs: dict[str, Value], tmp_path: Path) -> None:
    for _, kernels in steps_of(_plan(outputs), device=CLUSTERS):
        for made in kernels or ():
            ptx = to_ptx(made.text, "sm_90a")
            assert (".reqnctapercluster" in ptx) == (made.kernel.launch is not None and made.kernel.launch.cluster > 1)
            told = assembled(made, "sm_90a", tmp_path)
            assert not spilled_bytes(told), told


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "width"), [(1, 64), (700, 128)])
def test_blocks_of_a_cluster_combine_the_parts_of_few_queries(keys: int, width: int) -> None:
    q = input("q", f16[1, 4, 1, width])
    k, v = (input(n, f16[1, 2, "t", width]) for n in "kv")
    graph = Graph.of({"y": library.attention(q, k, v, scale=width**-0.5, groups=2)})
    plan = make_plan(graph, target="cuda")
    ((_, kernels),) = steps_of(plan, device=CLUSTERS)
    assert kernels is not None and [made.kernel.launch.cluster for made in kernels if made.kernel.launch] == [8]
    random = np.random.default_rng(keys)
    shapes = {"q": (1, 4, 1, width), "k": (1, 2, keys, width), "v": (1, 2, keys, width)}
    feeds = {n: random.normal(size=shape).astype(np.float16) for n, shape in shapes.items()}
    device = SimulatedDriver()
    device.description = CLUSTERS
    found = CudaGraph(plan, lambda: device).bind({}).run(feeds)["y"]
    wanted = evaluate(graph, feeds, lift=True)["y"]
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=1e-2, atol=2e-3)


@pytest.mark.exhaustive
def test_a_gather_that_checks_its_indices_is_no_prologue() -> None:
    """Its status would be a second result."""
    table, ids = param("table", bf16[10, 256]), input("ids", i64[3])
    outputs = {"y": ops.gather(table, ids, axis=0) @ param("w", bf16[256, 4096])}
    kernels = _kernels(_plan(outputs))
    assert len(kernels) == 2 and not any(map(_has_prologue, kernels))
    _judged(outputs)


@pytest.mark.exhaustive
def test_a_step_with_a_prologue_is_no_prologue_itself() -> None:
    """The norm before the gate became a part of it, and the gate of the product after it: the norm was lost."""
    x, gain = input("x", f32[1, 32]), param("gain", f32[32])
    up, gate, down = param("up", f32[32, 64]), param("gate", f32[32, 64]), param("down", f32[64, 32])
    _judged({"y": library.swiglu(library.rms_norm(x, gain, eps=1e-6), up, gate) @ down}, CLAIMS)
