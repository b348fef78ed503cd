"""Kernels that scan, sort, scatter, convert and sample: in lockstep against the reference, assembled for every card."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.errors import BindError
from dovetail.ir.dtype import FLOATS, NARROW, DType, bf16, bool_, f8e4m3fn, f16, f32, f64, i8, i32, i64, u8, u64
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.kernels.gpu.fp8_cast import FORMATS
from dovetail.kernels.gpu.order import sort_passes
from dovetail.kernels.gpu.order.sort_passes import SortPolicy
from dovetail.ops.detection import grid_sample
from dovetail.ops.resize import resize
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import CudaGraph, kernels_of
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.assembled import spilled_bytes, told_of
from tests.targets.cuda.graphs import Case
from tests.targets.cuda.judged import check, expected_of, feeds_of, in_lockstep
from tests.targets.cuda.simulated import SimulatedDriver
from tests.tolerances import assert_close

SMALL = replace(H200, multiprocessors=2)
"""A device that a few blocks fill, so that few elements take every path."""
ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few keys, so that short rows are merged."""
    monkeypatch.setattr(sort_passes, "POLICY", SortPolicy(chunk=64, merged=4))


def run(outputs: dict[str, Value], feeds: dict[str, Array]) -> None:
    """What a device computes is near the reference."""
    case = Case(outputs)
    check(case, in_lockstep(case, feeds, device=SMALL), feeds)


def names_of(outputs: dict[str, Value]) -> set[str]:
    return {k.kernel.name for _, k in kernels_of(make_plan(Graph.of(outputs), target="cuda"), device=SMALL)}


def near_one(feeds: dict[str, Array]) -> dict[str, Array]:
    """Products of many stay finite."""
    return {name: (x.astype(np.float64) * 0.01 + 1).astype(x.dtype) for name, x in feeds.items()}


def scans(x: Value, axis: int) -> dict[str, Value]:
    """Every running reduction, and each of exclusive and reversed."""
    return {
        "sum": ops.cum_sum(x, axis=axis, exclusive=True),
        "prod": ops.cum_prod(x, axis=axis, reverse=True),
        "max": ops.cum_max(x, axis=axis, exclusive=True, reverse=True),
        "min": ops.cum_min(x, axis=axis),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "shape", "axis", "sizes"),
    [
        (f32, (9, 100), -1, {}),
        (bf16, (2, 1100), -1, {}),
        (i32, (2, 70, 3), -2, {}),
        (f64, (1, 17_000), -1, {}),
        (f32, ("b", "n"), -1, {"b": 2, "n": 2049}),
        (f32, ("b", "n"), -1, {"b": 2, "n": 0}),
        (f16, (2, "n"), -1, {"n": 300}),
    ],
)
def test_scans(dtype: DType, shape: tuple[int | str, ...], axis: int, sizes: dict[str, int]) -> None:
    outputs = scans(input("x", dtype[shape]), axis)
    feeds = feeds_of(Graph.of(outputs), sizes)
    run(outputs, near_one(feeds))


@pytest.mark.slow
def test_scans_keep_nan_and_infinity() -> None:
    outputs = scans(input("x", f32[2, 60]), -1)
    x = np.ones((2, 60), np.float32)
    x[0, 20], x[1, 5], x[1, 40] = np.nan, -np.inf, np.inf
    run(outputs, {"x": x})


def test_few_long_rows_are_scanned_in_parts() -> None:
    assert names_of({"y": ops.cum_sum(input("x", f32[1, 17_000]), axis=-1)}) == {"scan_totals", "scan_parts"}
    assert names_of({"y": ops.cum_sum(input("x", f32[40, 17_000]), axis=-1)}) == {"scan"}
    assert names_of({"y": ops.cum_sum(input("x", f32[40, 9]), axis=-1)}) == {"cum_sum"}, "a thread for each row"


def sorts(x: Value, axis: int, k: int | None) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for descending in (False, True):
        found[f"sorted_{descending}"], found[f"order_{descending}"] = ops.sort(x, axis=axis, descending=descending)
        if k is not None:
            best, places = ops.top_k(x, k=k, axis=axis, largest=descending, in_order=not descending)
            found[f"best_{descending}"], found[f"places_{descending}"] = best, places
    return found


def awkward(dtype: DType, shape: tuple[int, ...]) -> Array:
    """Few different elements, with NaN, both zeros and infinities where a dtype has them."""
    rng = np.random.default_rng(len(shape))
    if dtype is bool_:
        return rng.random(shape) < 0.5
    x = np.round(rng.normal(size=shape) * 4) / 2
    if dtype.is_float:
        x = np.where(rng.random(shape) < 0.1, np.nan, x)
        x = np.where(rng.random(shape) < 0.05, np.inf, np.where(rng.random(shape) < 0.1, -0.0, x))
    return np.abs(x).astype(dtype.numpy) if dtype.kind == "uint" else x.astype(dtype.numpy)


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("dtype", "shape", "axis", "sizes", "k"),
    [
        (f32, (3, 50), -1, {}, 7),
        (f16, (2, 300), -1, {}, 7),
        (i32, (130, 3), -2, {}, 31),
        (f64, (2, 200), -1, {}, 5),
        (i64, (70,), -1, {}, 32),
        (bool_, (2, 90), -1, {}, 4),
        (u8, (1, 65), -1, {}, 1),
        (bf16, (129,), -1, {}, 31),
        (f32, ("b", "n"), -1, {"b": 2, "n": 150}, 7),
        (u64, (2, "n"), -1, {"n": 300}, 7),
        (f32, (2, "n"), -1, {"n": 0}, None),
        (f32, (2, 0), -1, {}, 0),
    ],
)
def test_sorts_are_stable_to_the_bit(
    dtype: DType, shape: tuple[int | str, ...], axis: int, sizes: dict[str, int], k: int | None
) -> None:
    outputs = sorts(input("x", dtype[shape]), axis, k)
    graph = Graph.of(outputs)
    x = awkward(dtype, tuple(sizes[n] if isinstance(n, str) else n for n in shape))
    got, expected = in_lockstep(Case(outputs), {"x": x}, device=SMALL), expected_of(graph, {"x": x})
    for name in outputs:
        assert got[name].tobytes() == expected[name].astype(got[name].dtype).tobytes(), name


def test_long_rows_have_passes_and_rounds() -> None:
    x = input("x", f32[1, 100_000])
    assert names_of({"y": ops.sort(x)[0]}) == {"sort_chunks", "sort_merge", "sort_results"}
    assert names_of({"y": ops.top_k(x, k=50)[0]}) == {"top_k_round", "top_k"}
    assert names_of({"y": ops.sort(input("x", f32[4, 1000]))[0]}) == {"sort"}


def test_many_unordered_results_run_on_the_host() -> None:
    value = ops.top_k(input("x", f32[5000]), k=3000, in_order=False)[0]
    assert names_of({"y": value}) == set()
    x = awkward(f32, (5000,))
    found = CudaGraph(make_plan(Graph.of({"y": value}), target="cuda"), SimulatedDriver).bind({}).run({"x": x})
    assert found["y"].tobytes() == expected_of(Graph.of({"y": value}), {"x": x})["y"].astype(np.float32).tobytes()


def scattered(dtype: DType, count: int | str, reduction: str) -> dict[str, Value]:
    """Elements along an axis, and parts of a tensor."""
    x, by, new = input("x", dtype[5, 9]), input("by", i64[4, count]), input("new", dtype[4, count])
    z, rows, more = input("z", dtype[5, 6, 3]), input("rows", i32[count, 2]), input("more", dtype[count, 3])
    return {
        "elements": ops.scatter_elements(x, by, new, axis=-1, reduction=reduction),
        "parts": ops.scatter_nd(z, rows, more, reduction=reduction),
    }


def indices_of(feeds: dict[str, Array]) -> dict[str, Array]:
    """Indices within the tensors, many of them equal, some from the end."""
    rng = np.random.default_rng(0)
    by = rng.integers(-9, 9, feeds["by"].shape)
    rows = np.stack([rng.integers(-5, 5, len(feeds["rows"])), rng.integers(0, 6, len(feeds["rows"]))], -1)
    return {**feeds, "by": by.astype(np.int64), "rows": rows.astype(np.int32)}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize(
    ("dtype", "count", "sizes"),
    [(f32, 10, {}), (i32, 100, {}), (f16, "n", {"n": 20}), (u8, 20, {}), (f64, "n", {"n": 0})],
)
def test_scatters(dtype: DType, count: int | str, sizes: dict[str, int], reduction: str) -> None:
    outputs = scattered(dtype, count, reduction)
    run(outputs, indices_of(feeds_of(Graph.of(outputs), sizes)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("axis", [-2, -3])
def test_updates_that_share_an_index_are_one_block(axis: int) -> None:
    """As the rows of a prompt in the heads of a cache; of two tokens at one position the later one stays."""
    tokens, at = 300, input("at", i64[300])
    shape = [2, 3, 3, 40]
    shape[axis] = tokens
    by = ops.unsqueeze(at, axes=tuple(a for a in (-1, -2, -3, -4) if a != axis))
    for a in (-1, -2, -3, -4):
        by = by if a == axis else ops.expand(by, axis=a, size=shape[a])
    slots = [*shape]
    slots[axis] = 500
    value = ops.scatter_elements(input("x", f16[tuple(slots)]), by, input("new", f16[tuple(shape)]), axis=axis)
    feeds = feeds_of(Graph.of({"y": value}), {})
    feeds["at"] = np.random.default_rng(0).integers(-500, 500, tokens)
    feeds["at"][17], feeds["at"][200] = 3, 3 - 500
    run({"y": value}, feeds)
    assert "scatter_rows" in names_of({"y": value})
    feeds["at"][299] = 500
    with pytest.raises(BindError, match="index 500 into an axis of size 500"):
        CudaGraph(make_plan(Graph.of({"y": value}), target="cuda"), SimulatedDriver).bind({}).run(feeds)


def test_bits_of_any_dtype_are_scattered() -> None:
    for dtype in (bool_, f8e4m3fn):
        outputs = {"y": scattered(dtype, 10, "none")["elements"]}
        feeds = (
            feeds_of(Graph.of(outputs), {})
            if dtype is bool_
            else {
                "x": np.arange(45, dtype=np.uint8).reshape(5, 9).view(dtype.numpy),
                "new": np.arange(40, dtype=np.uint8).reshape(4, 10).view(dtype.numpy),
            }
        )
        feeds["by"] = np.random.default_rng(1).integers(0, 9, (4, 10))
        got = in_lockstep(Case(outputs), feeds)["y"]
        assert got.tobytes() == expected_of(Graph.of(outputs), feeds)["y"].astype(got.dtype).tobytes()


def test_updates_are_combined_by_atomics_only_where_order_does_not_matter() -> None:
    for dtype, reduction, expected in (
        (i32, "add", True),
        (u64, "max", True),
        (i64, "mul", False),
        (f32, "add", False),
        (f32, "max", False),
        (i8, "add", False),
        (f32, "none", False),
    ):
        value = scattered(dtype, 50, reduction)["parts"]
        kernels = kernels_of(make_plan(Graph.of({"y": value}), target="cuda"))
        assert any("atomicrmw" in k.text for _, k in kernels) == expected, (dtype, reduction)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("reduction", "count"), [("none", 10), ("none", 90), ("add", 90)])
def test_an_update_of_a_donated_input_copies_nothing(reduction: str, count: int) -> None:
    value = scattered(f32, count, reduction)["parts"]
    graph = Graph.of({"y": value})
    plan = make_plan(graph.donate({"y": "z"}), target=CLAIMS)
    assert "scatter_copy" not in {made.kernel.name for _, made in kernels_of(plan)}
    feeds = indices_of(feeds_of(Graph.of(scattered(f32, count, reduction)), {}))
    given = {name: feeds[name] for name in ("z", "rows", "more")}
    expected = expected_of(graph, given)["y"]
    found = CudaGraph(plan, SimulatedDriver).bind({}).run({**given, "z": given["z"].copy()})
    assert_close(found["y"], expected, f32)


@pytest.mark.slow
def test_an_index_out_of_range_is_an_error() -> None:
    for reduction, count in (("none", 10), ("none", 300), ("add", 10)):
        value = scattered(f32, count, reduction)["parts"]
        feeds = indices_of(feeds_of(Graph.of(scattered(f32, count, reduction)), {}))
        feeds["rows"][3, 1] = 6
        given = {name: feeds[name] for name in ("z", "rows", "more")}
        runner = CudaGraph(make_plan(Graph.of({"y": value}), target="cuda"), SimulatedDriver).bind({})
        with pytest.raises(BindError, match="index 6 into an axis of size 6"):
            runner.run(given)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
def test_images_are_resized_and_sampled(dtype: DType) -> None:
    x, grid = input("x", dtype[2, 9, 5, 4]), input("grid", dtype[2, 3, 7, 2])
    sizes = {"axes": (-2, -1), "sizes": (8, 3)}
    outputs = {
        "nearest": resize(x, **sizes, mode="nearest"),
        "linear": resize(x, **sizes, mode="linear", coordinates="align_corners"),
        "linear_any": resize(input("w", dtype["b", 3, 5]), axes=(-1,), sizes=(7,), mode="linear"),
        "resized_cubic": resize(x, **sizes, mode="cubic", coordinates="half_pixel"),
        "excluded": resize(x, **sizes, mode="cubic", exclude_outside=True),
        "smooth": resize(x, **sizes, mode="linear", antialias=True),
        "sampled": grid_sample(x, grid, mode="linear", padding="reflection", align_corners=False),
        "cubic": grid_sample(x, grid, mode="cubic", padding="border", align_corners=True),
    }
    run(outputs, feeds_of(Graph.of(outputs), {"b": 3}))


NARROW_BYTES = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_types_are_converted_as_the_reference_does(dtype: DType) -> None:
    """From every pattern of bits, and to the type from numbers around all that it has."""
    narrow = NARROW_BYTES if dtype.bits == 8 else NARROW_BYTES[: 1 << dtype.bits]
    outputs = {
        "wide": ops.cast(input("n", dtype[narrow.size]), dtype=f32),
        "from_f32": ops.cast(input("x", f32[300]), dtype=dtype),
        "from_f16": ops.cast(input("h", f16[300]), dtype=dtype),
    }
    x = np.random.default_rng(0).normal(size=300) * np.repeat([0.01, 1, 100], 100)
    if dtype.is_float:
        x[:4] = [0.0, np.inf, -np.inf, np.nan]
    else:
        x = np.clip(x, 0, 1)
    feeds = {"n": narrow.view(dtype.numpy), "x": x.astype(np.float32), "h": x.astype(np.float16)}
    got = CudaGraph(make_plan(Graph.of(outputs), target="cuda"), SimulatedDriver).bind({}).run(feeds)
    assert names_of(outputs) == {"convert" if dtype in FORMATS else "table"}
    with np.errstate(all="ignore"):
        expected = evaluate(Graph.of(outputs), feeds)
    for name in outputs:
        same = got[name].view(np.uint8) == expected[name].view(np.uint8)
        assert (same | np.isnan(expected[name].astype(np.float32)).repeat(got[name].itemsize)).all(), name


@cache
def texts() -> dict[str, str]:
    """The texts of all kernels here by name."""
    return dict(sorted(set(assembled())))


def assembled() -> Iterator[tuple[str, str]]:
    """Every kernel of the families here once, at the sizes of real chunks."""
    values = {
        **{f"scan_{k}": v for k, v in scans(input("x", f32[1, 50_000]), -1).items()},
        **{f"scan_any_{k}": v for k, v in scans(input("u", f16["b", "n"]), -1).items()},
        "warp": ops.cum_sum(input("w", f64[9, 100]), axis=-1),
        "sort": ops.sort(input("a", f32[9, 5000]))[0],
        "sort_wide": ops.sort(input("c", f64[2, 5000]), descending=True)[1],
        "sort_any": ops.sort(input("d", bf16["b", "n"]))[0],
        "best": ops.top_k(input("e", f32[1, 150_000]), k=50)[1],
        "best_any": ops.top_k(input("f", i64[2, "m"]), k=5, in_order=False)[1],
        "sampled": grid_sample(input("s", f32[1, 3, 9, 9]), input("g", f32[1, 8, 8, 2])),
        "resized": resize(input("v", f16[1, 3, 9, 9]), axes=(-2, -1), sizes=(5, 6), mode="linear"),
        "narrow": ops.cast(input("n", f32[700]), dtype=f8e4m3fn),
    }
    for reduction, dtype in (("none", f32), ("add", f16), ("min", i64), ("max", u64)):
        values |= {f"{n}_{reduction}": v for n, v in scattered(dtype, "q", reduction).items()}
    for name, value in values.items():
        # Kernels that every architecture has: Hopper converts fp8 by instructions (test_fp8.py).
        device = replace(H200, converts_fp8=False)
        kernels = kernels_of(make_plan(Graph.of({"y": value}), target="cuda"), device=device)
        assert kernels, f"{name} has kernels"
        yield from ((made.kernel.name, made.text) for _, made in kernels)


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_assemble_without_spills(architecture: str, tmp_path: Path) -> None:
    for name, text in texts().items():
        ptx = to_ptx(text, architecture)
        assert "__local_depot" not in ptx and "call.uni" not in ptx, name
        assert not spilled_bytes(told_of(ptx, architecture, tmp_path)), name


@pytest.mark.slow
def test_kernels_become_ptx() -> None:
    assert len(texts()) >= 15
    for name in ("scan_parts", "sort_rows", "top_k_rows", "scatter_vote", "scatter_slot"):
        ptx = to_ptx(texts()[name], "sm_80")
        assert "__local_depot" not in ptx and "call.uni" not in ptx, name
        assert ("\tred." in ptx or "\tatom." in ptx) == (name == "scatter_vote")
        assert ("shfl.sync.idx" in ptx) == (name == "scan_parts")


def test_split_reductions_fill_the_device_that_runs_them() -> None:
    plan = make_plan(Graph.of({"y": ops.reduce_sum(input("x", f32[1, 1 << 24]), axes=(-1,))}), target="cuda")
    for multiprocessors in (2, 46, 132):
        first = kernels_of(plan, device=replace(H200, multiprocessors=multiprocessors))[0][1].kernel
        assert first.launch is not None and first.launch.grid == 4 * multiprocessors
