"""Products whose depth several blocks share: which kernel adds up the parts, and what comes out."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from dovetail import Graph, library
from dovetail.ir.dtype import DType, bf16, f16
from dovetail.ir.leaf import input, param
from dovetail.ir.value import Value
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import CudaGraph, steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.gpu.stored import from_bytes, to_bytes
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.simulated import SimulatedDriver

CLUSTERS = replace(H200, cluster=8)
EARLY = replace(CLUSTERS, dependent_intensity=inf)
PARTS, SUM, ROWS = "contract_parts", "contract_sum", "rows"


def _linear(x: Value, name: str, size: int, *, gelu: bool = False) -> Value:
    w, b = param(name, x.dtype[x.shape[-1], size]), param(f"{name}.bias", x.dtype[size])
    return library.linear(x, w, b, act="gelu" if gelu else "none")


def _post_norm(shape: tuple[int, ...], size: int, dtype: DType = f16, *, gelu: bool = False) -> dict[str, Value]:
    """A product, and a norm of it and of a residual."""
    y = _linear(input("x", dtype[shape]), "w", size, gelu=gelu)
    residual = input("residual", dtype[(*shape[:-1], size)])
    gain, shift = (param(name, dtype[size]) for name in ("gain", "shift"))
    return {"z": library.residual_layer_norm(residual, y, gain, shift, eps=1e-5)}


def _two_readers() -> dict[str, Value]:
    y = _linear(input("x", f16[48, 4096]), "w", 64)
    return {"y": y, "z": library.layer_norm(y, param("gain", f16[64]), param("shift", f16[64]), eps=1e-5)}


JOINED = {
    "few_rows": _post_norm((16, 1536), 64),
    "odd_rows": _post_norm((21, 1544), 72, bf16),
    "by_producer": _post_norm((64, 2048), 64),
    "batch": _post_norm((2, 40, 2048), 128, bf16),
    "gelu": _post_norm((40, 2048), 192, gelu=True),
}


def _kernels(outputs: dict[str, Value]) -> list[GpuKernel]:
    plan = make_plan(Graph.of(outputs), target=CLAIMS)
    return [made for _, kernels in steps_of(plan, device=CLUSTERS) for made in kernels or ()]


def _judged(outputs: dict[str, Value]) -> None:
    """Runs of a graph on the simulated device are near float64."""
    graph, random = Graph.of(outputs), np.random.default_rng(4)
    drawn = {
        str(v.attrs["name"]): (random.normal(size=[int(str(n)) for n in v.shape]) / 8).astype(v.dtype.numpy)
        for v in (*graph.inputs, *graph.parameters)
    }
    params = {str(v.attrs["name"]): drawn.pop(str(v.attrs["name"])) for v in graph.parameters}
    wanted = evaluate(graph, drawn, params=params, lift=True)
    for description in (CLUSTERS, EARLY):
        device = SimulatedDriver()
        device.description = description
        runner = CudaGraph(make_plan(graph, target=CLAIMS), lambda device=device: device).bind(params)
        for _ in range(2):
            for name, found in runner.run(drawn).items():
                error = np.linalg.norm(found.astype(np.float64) - wanted[name])
                assert error <= 5e-3 * np.linalg.norm(wanted[name]), name


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", JOINED)
def test_a_norm_adds_up_the_parts_of_the_product_before_it(name: str) -> None:
    assert [made.kernel.name for made in _kernels(JOINED[name])] == [PARTS, ROWS]
    _judged(JOINED[name])


@pytest.mark.parametrize(
    ("outputs", "name", "blocks", "layouts"),
    [
        (_post_norm((128, 1536), 384), PARTS, 72, ["transposed"]),
        (_post_norm((128, 384), 384), "contract", 24, ["transposed"]),
        (_post_norm((128, 3072), 768), PARTS, 72, []),
    ],
    ids=["narrow_tiles_in_three_parts", "narrow_tiles_whole", "square_tiles_in_three_parts"],
)
def test_parts_and_tiles_are_those_that_were_fastest(
    outputs: dict[str, Value], name: str, blocks: int, layouts: list[str]
) -> None:
    """Layers of MiniLM and BERT with 128 tokens. Tiles of 32 columns have weights with lines along k."""
    product, norm = _kernels(outputs)
    assert [product.kernel.name, norm.kernel.name] == [name, ROWS] and product.launch.grid == blocks
    assert [one.layout for one in product.packed.values()] == layouts


@pytest.mark.slow
def test_parts_of_transposed_weights_are_added_up() -> None:
    outputs = _post_norm((64, 512), 64)
    parts, _ = _kernels(outputs)
    assert parts.kernel.name == PARTS and [one.layout for one in parts.packed.values()] == ["transposed"]
    _judged(outputs)


@pytest.mark.exhaustive
def test_a_kernel_of_its_own_adds_up_what_several_steps_read() -> None:
    assert [made.kernel.name for made in _kernels(_two_readers())] == [PARTS, SUM, ROWS]
    _judged(_two_readers())


def test_parts_have_enough_work_for_the_multiprocessors_that_would_be_idle() -> None:
    (parts, _) = _kernels(_post_norm((128, 3072), 768))
    launch = parts.kernel.launch
    assert launch is not None and isinstance(launch.grid, int)
    assert H200.multiprocessors // 2 < launch.grid <= H200.multiprocessors


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [_post_norm((4096, 768), 768), _post_norm((128, 64), 64)], ids=["wide", "shallow"])
def test_products_with_many_tiles_or_little_depth_stay_whole(outputs: dict[str, Value]) -> None:
    assert [made.kernel.name for made in _kernels(outputs)] == ["contract", ROWS]


@pytest.mark.exhaustive
def test_equal_layers_share_the_kernels_of_parts() -> None:
    x = input("x", f16[16, 64])
    for layer in range(3):
        y = _linear(input(f"deep{layer}", f16[16, 1536]), f"down{layer}", 64)
        x = library.residual_layer_norm(x, y, param(f"g{layer}", f16[64]), param(f"s{layer}", f16[64]), eps=1e-5)
    found = _kernels({"z": x})
    assert [made.kernel.name for made in found] == [PARTS, ROWS] * 3
    # The first norm reads an input, whose alignment is not known; the others are alike.
    assert len({made.text for made in found[2:]}) == 2
    _judged({"z": x})


def test_they_are_stored() -> None:
    plan = make_plan(Graph.of(JOINED["few_rows"]), target=CLAIMS)
    steps = tuple([kernels for _, kernels in steps_of(plan, device=CLUSTERS)])
    content = to_bytes(plan, steps, {made.text: "code" for kernels in steps for made in kernels or ()})
    assert content is not None
    again, _ = from_bytes(plan, content)
    assert [[made.workspace for made in kernels or ()] for kernels in again] == [
        [made.workspace for made in kernels or ()] for kernels in steps
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["few_rows", "by_producer"])
def test_they_assemble_without_spills(name: str, tmp_path: Path) -> None:
    for made in _kernels(JOINED[name]):
        told = assembled(made, "sm_90a", tmp_path)
        assert not spilled_bytes(told), told
