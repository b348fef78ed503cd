"""A kernel template that raises has no kernel for the step: the next one serves it, and the report has a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Builder, ops
from dovetail.dtypes import f32
from dovetail.targets.runtime import selection


def graph() -> dovetail.Graph:
    b = Builder("g")
    x = b.input("x", f32[8, 8])
    b.output("y", ops.exp(x) @ x)
    return b.graph()


@pytest.fixture
def x() -> Iterator[Any]:
    yield np.eye(8, dtype=np.float32)


@pytest.mark.slow
def test_the_next_template_serves_the_step(monkeypatch: pytest.MonkeyPatch, x: Any) -> None:
    monkeypatch.setattr(selection, "answer_of", raising(selection.answer_of, "gemm"))
    program = dovetail.compile(graph(), cache="off")
    np.testing.assert_allclose(program(x=x)["y"], np.exp(x) @ x, rtol=1e-5)
    assert not [k.op for k in program.report.kernels if k.on_host]
    (line,) = [line for line in str(program.report).splitlines() if line.startswith("RAISED")]
    assert "1 × matmul" in line and "gemm raised IndexError: tuple index out of range: another kernel takes it" in line


@pytest.mark.slow
def test_a_kernel_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch, x: Any) -> None:
    """Its template offers it, and raises when it is asked for its code."""

    kept = selection.answer_of

    def unwritten() -> Any:
        raise TypeError("no code")

    def answer(row: Any, problem: Any) -> Any:
        found: Any = kept(row, problem)
        return replace(found, build=unwritten) if row.name == "gemm" else found

    monkeypatch.setattr(selection, "answer_of", answer)
    program = dovetail.compile(graph(), cache="off")
    np.testing.assert_allclose(program(x=x)["y"], np.exp(x) @ x, rtol=1e-5)
    assert "raised TypeError: no code: another kernel takes it" in str(program.report)


@pytest.mark.slow
def test_a_step_without_a_kernel_runs_on_the_host_and_the_report_says_why(
    monkeypatch: pytest.MonkeyPatch, x: Any
) -> None:
    monkeypatch.setattr(selection, "answer_of", raising(selection.answer_of, ""))
    program = dovetail.compile(graph(), cache="off")
    np.testing.assert_allclose(program(x=x)["y"], np.exp(x) @ x, rtol=1e-5)
    assert "raised IndexError: tuple index out of range" in str(program.report)
    assert {k.op for k in program.report.kernels if k.on_host} == {"exp", "matmul"}


@pytest.mark.slow
def test_another_target_tells_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "answer_of", raising(selection.answer_of, "weave"))
    report = str(dovetail.compile(graph(), target="cuda", cache="off").report)
    (line,) = [line for line in report.splitlines() if line.startswith("RAISED")]
    assert "1 × exp" in line and "weave raised IndexError" in line and "HOST" not in report


def raising(kept: Any, name: str) -> Any:
    """Rows of this name raise, or all of them."""

    def answer(row: Any, problem: Any) -> Any:
        if not name or row.name == name:
            raise IndexError("tuple index out of range")
        return kept(row, problem)

    return answer
