"""The judge of random graphs sees wrong numbers, bits and meanings, and forgives what rounding decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail import Builder, Program, Value, ops
from dovetail.dtypes import f32
from dovetail.ir.literal import Array
from fuzz.case import Case, Way, restore, store
from fuzz.judge import Wrong, check
from fuzz.run import again, run_batch


def case_of(value: Value, builder: Builder, **feeds: Array) -> Case:
    builder.output("y", value)
    return Case(builder.graph(), feeds)


@pytest.fixture
def case() -> Case:
    builder = Builder("case")
    x = builder.input("x", f32["n", 8])
    w = builder.param("w", f32[8, 4], np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4))
    return case_of(ops.tanh(x @ w), builder, x=np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8))


def spoiled(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Array], Array]) -> None:
    """Every program gives something else."""
    run = Program.run

    def wrong(self: Program, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {name: spoil(array) for name, array in run(self, feeds).items()}

    monkeypatch.setattr(Program, "run", wrong)


@pytest.mark.slow
def test_what_is_right_passes(case: Case, tmp_path: Path) -> None:
    assert check(case, Way(), tmp_path)
    way = Way("greedy", ("fuse", "mark_regions"), strict=True, threads=1, specialised=True, round_trip="text")
    assert check(case, way, tmp_path)
    assert check(case, replace(way, round_trip="file"), tmp_path)


def test_wrong_numbers_are_seen(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled(monkeypatch, lambda y: y + np.float32(1e-4))
    with pytest.raises(Wrong, match=r"y, compiled by default: 12 of 12 elements are off, first \[0, 0\]"):
        check(case, Way(), tmp_path)


def test_a_nan_is_seen(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled(monkeypatch, lambda y: np.where(y == y.max(), np.float32("nan"), y))
    with pytest.raises(Wrong, match="1 of 12 elements are off"):
        check(case, Way(), tmp_path)


def test_another_dtype_or_shape_is_seen(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled(monkeypatch, lambda y: y.astype(np.float64))
    with pytest.raises(Wrong, match=r"is float64\(3, 4\), not f32"):
        check(case, Way(), tmp_path)


def test_runs_whose_bits_differ_are_seen(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signs = iter(range(100))
    spoiled(monkeypatch, lambda y: np.nextafter(y, np.float32(next(signs) % 2)))
    with pytest.raises(Wrong, match="y of a second run has other bits"):
        check(case, Way(), tmp_path)


def test_another_runtime_that_means_something_else_is_seen(case: Case, tmp_path: Path) -> None:
    with pytest.raises(Wrong, match="y, by the other runtime"):
        check(replace(case, wanted={"y": np.zeros((3, 4), np.float32)}), Way(), tmp_path)


def test_what_rounding_decides_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder("edge")
    x = builder.input("x", f32[4])
    one = case_of(ops.floor(x * 3.0), builder, x=np.full(4, 1 / 3, np.float32))
    spoiled(monkeypatch, lambda y: np.zeros_like(y))
    assert not check(one, Way(), tmp_path)


@pytest.mark.slow
def test_convolutions_near_the_end_of_the_range_are_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for factor, judged in ((1e36, False), (1.0, True)):
        builder = Builder("far")
        x = builder.input("x", f32[1, 1, 4, 4])
        kernel = np.full((1, 1, 3, 3), factor, np.float32)
        one = case_of(
            ops.conv(x, dovetail.graphs.constant(kernel), padding=(1, 1, 1, 1)),
            builder,
            x=np.ones((1, 1, 4, 4), np.float32),
        )
        with monkeypatch.context() as patched:
            spoiled(patched, lambda y: np.full_like(y, np.inf))
            if judged:
                with pytest.raises(Wrong):
                    check(one, Way(), tmp_path)
            else:
                assert not check(one, Way(), tmp_path)


def test_a_case_comes_back(case: Case, tmp_path: Path) -> None:
    way = Way("greedy", ("fuse",), threads=1)
    store(replace(case, wanted={"a/b": np.ones(2, dovetail.dtypes.bf16.numpy)}), way, tmp_path)
    found, same = restore(tmp_path)
    assert same == way
    assert dovetail.graphs.print_graph(found.graph) == dovetail.graphs.print_graph(case.graph)
    np.testing.assert_array_equal(found.feeds["x"], case.feeds["x"])
    assert found.wanted["a/b"].dtype == dovetail.dtypes.bf16.numpy


@pytest.mark.slow
@pytest.mark.parametrize("source", ["primitives", "networks"])
def test_a_batch_passes_and_leaves_nothing(source: str, tmp_path: Path) -> None:
    told: list[None] = []
    batch = run_batch(source, 5, 3, tmp_path, lambda: told.append(None))
    assert batch.graphs == len(told) >= 3 and not batch.failure
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_a_failure_is_shrunk_and_kept_with_a_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        spoiled(patched, lambda y: y + 1 if y.size and y.dtype.kind == "f" else y)
        batch = run_batch("primitives", 6, 10, tmp_path, lambda: None)
        folder = tmp_path / "primitives-6"
        assert batch.failure.startswith(str(folder))
        kept, _ = restore(folder)
        assert len(kept.graph.values) <= 8
        with pytest.raises(Wrong):
            again(folder)
    assert "again(Path(__file__).parent)" in (folder / "test_case.py").read_text()
    again(folder)
