"""Compiled code dies with the programs that use it, and never earlier."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.runtime.building import code_cache
from dovetail.targets.runtime.building.build import build
from dovetail.targets.runtime.building.serial import from_bytes, to_bytes

RNG = np.random.default_rng(0)
X: Array = RNG.standard_normal((8, 24)).astype(np.float32)
W: Array = RNG.standard_normal((24, 40)).astype(np.float32)


@pytest.fixture(autouse=True)
def few_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache holds one function that no program holds."""
    monkeypatch.setattr(code_cache, "MOST_RECENT", 1)


def shaped(number: int) -> Graph:
    """Another kernel for each number: sizes are constants in it. LLVM compiles a sum quickly."""
    return Graph.of({"y": input("x", f32[8 + number, 24]) + 1.0})


def feed(number: int) -> Array:
    return np.random.default_rng(number).standard_normal((8 + number, 24)).astype(np.float32)


def check(runner: NativeRunner, number: int) -> None:
    x = feed(number)
    np.testing.assert_allclose(runner.run({"x": x})["y"], x.astype(np.float64) + 1.0, rtol=1e-5, atol=1e-6)


def product(act: int) -> Graph:
    """Its kernel calls the GEMM block that all products share."""
    y = input("x", f32[8, 24]) @ param("w", f32[24, 40])
    return Graph.of({"y": ops.tanh(y) + float(act)})


def compiled(graph: Graph, **params: Array) -> NativeRunner:
    return NativeGraph(make_plan(graph, target=CPU), threads=1).bind(params)


def resident() -> int:
    """Bytes of memory without pages of files, which a system takes back and brings again as it likes."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_programs_that_are_dropped_leave_no_code() -> None:
    lives = compiled(shaped(0))
    for number in range(1, 16):
        check(compiled(shaped(number)), number)
    gc.collect()
    entries, before = len(BACKEND.code), resident()
    for number in range(16, 116):
        check(compiled(shaped(number)), number)
        if number % 20 == 0:
            gc.collect()
            check(lives, 0)
    gc.collect()
    assert len(BACKEND.code) <= entries
    assert resident() - before < 100 * (32 << 10), "less than a few pages for each program"


@pytest.mark.slow
def test_shared_functions_live_as_long_as_their_callers() -> None:
    truth = np.tanh(X.astype(np.float64) @ W.astype(np.float64))
    first = compiled(product(1), w=W)
    second = compiled(product(2), w=W)
    del first
    gc.collect()
    np.testing.assert_allclose(second.run({"x": X})["y"], truth + 2, rtol=1e-5)
    del second
    gc.collect()
    # The block is loaded again, at another address.
    third = compiled(product(3), w=W)
    np.testing.assert_allclose(third.run({"x": X})["y"], truth + 3, rtol=1e-5)
    fourth = compiled(product(4), w=W)
    np.testing.assert_allclose(fourth.run({"x": X})["y"], truth + 4, rtol=1e-5)


def test_equal_kernels_are_one_function() -> None:
    plan = make_plan(shaped(7), target=CPU)
    one, other = build(plan, BACKEND), build(plan, BACKEND)
    assert one.entries == other.entries and one.functions[0] is other.functions[0]


@pytest.mark.slow
def test_object_files_go_with_the_code_and_come_back_from_bytes() -> None:
    plan = make_plan(product(5), target=CPU)
    built = build(plan, BACKEND)
    names = [module.name for job in built.jobs for module in BACKEND.code.modules(job)]  # pyright: ignore[reportArgumentType]
    content = to_bytes(plan, built.jobs, BACKEND)
    assert all(BACKEND.code.object_of(name) in content for name in names)
    del built
    compiled(shaped(8))
    gc.collect()
    assert names[-1] not in BACKEND.code
    again = NativeGraph(plan, threads=1, built=from_bytes(plan, content, BACKEND)).bind({"w": W})
    assert names[-1] in BACKEND.code
    truth = np.tanh(X.astype(np.float64) @ W.astype(np.float64)) + 5
    np.testing.assert_allclose(again.run({"x": X})["y"], truth, rtol=1e-5)
