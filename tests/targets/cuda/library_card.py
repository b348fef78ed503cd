"""A simulated card with cuBLASLt, graphs with products, and what the report tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import dovetail
from dovetail import Graph, input, library, ops, param
from dovetail.dtypes import f32, f64
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.runtime.program import Program
from dovetail.targets.cuda.library import call as library_call
from dovetail.targets.cuda.library import choice as library_choice
from dovetail.targets.cuda.library import considered as library_considered
from dovetail.targets.cuda.library import trial as library_trial
from dovetail.targets.cuda.library.choice import KIND
from dovetail.targets.cuda.runs import run
from tests.targets.cuda.fake_cublaslt import FakeCublasLt
from tests.targets.cuda.judged import drawn
from tests.targets.cuda.simulated import SimulatedDriver, drawn_for, target_of
from tests.tolerances import assert_close


class Card:
    """A simulated device, and the library on it."""

    def __init__(self) -> None:
        self.driver = SimulatedDriver()
        self.library = FakeCublasLt(self.driver.library)
        self.driver.library.seconds = dict.fromkeys(("contract", "contract_parts"), 1e-3)

    def compile(
        self, graph: Graph, cache: Path | str = "off", tune: Literal["auto", "always", "off"] = "always", **options: Any
    ) -> Program:
        return dovetail.compile(graph, target=target_of(self.driver), cache=str(cache), tune=tune, **options)

    def launches(self) -> list[str]:
        """What has run since the last call."""
        self.driver.synchronize()
        found = [one.removeprefix("launch ") for one in self.driver.log if one.startswith("launch ")]
        self.driver.log.clear()
        return [one.partition(" ")[0] for one in found if not one.startswith("fill")]


def installed(_: int) -> str:
    return "libcublasLt 13"


def absent(_: int) -> None:
    return None


def card_with_library(monkeypatch: pytest.MonkeyPatch) -> Card:
    """A card on which our products take longer than any of the library's."""
    made = Card()

    def loaded(_: str) -> FakeCublasLt:
        return made.library

    for module in (run, library_considered):
        monkeypatch.setattr(module, "place", installed)
    monkeypatch.setattr(library_choice, "identity", str)
    monkeypatch.setattr(library_call, "loaded", loaded)
    for module in (library_choice, library_considered):
        monkeypatch.setattr(module, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(library_trial, "ROUNDS", 1)
    monkeypatch.setattr(library_trial, "MOST_RUNS", 1)
    return made


def bound(card: Card, graph: Graph, cache: Path | str = "off", **options: Any) -> tuple[Program, dict[str, Array]]:
    """A program with drawn parameters, and drawn inputs."""
    drawn = drawn_for(graph)
    feeds = {str(v.attrs["name"]): drawn[str(v.attrs["name"])] for v in graph.inputs}
    program = card.compile(graph, cache, **options)
    program.bind({name: x for name, x in drawn.items() if name not in feeds})
    card.launches()
    return program, feeds


def check(graph: Graph, got: Mapping[str, Any], scale: float = 1.0) -> None:
    """What a run on drawn arrays gives is near the reference."""
    expected = dovetail.compile(graph, target="reference", cache="off")
    drawn = drawn_for(graph)
    feeds = {str(v.attrs["name"]): drawn.pop(str(v.attrs["name"])) for v in graph.inputs}
    right = expected.bind(drawn).run(feeds)
    for name, value in graph.outputs.items():
        assert_close(np.asarray(got[name]), right[name], value.dtype, scale=scale)


def drawn_as(value: Value, sizes: Mapping[str, int]) -> Array:
    shape = tuple(n if isinstance(n, int) else sizes[str(n)] for n in value.shape)
    return drawn(value.dtype, shape, 1)


def linear(dtype: DType = f32, rows: int = 24, depth: int = 8, columns: int = 40) -> tuple[Value, Value]:
    return input("x", dtype[rows, depth]), param("w", dtype[depth, columns])


def biased(dtype: DType = f32, **sizes: int) -> Graph:
    """A product with a bias and GELU."""
    x, w = linear(dtype, **sizes)
    y = x @ w + param("b", dtype[w.shape[-1]])
    # The erf of f64 is no kernel.
    return Graph.of({"y": ops.tanh(y) if dtype is f64 else library.gelu(y)})


def inner(dtype: DType = f32, **sizes: int) -> Graph:
    """A product without an epilogue, whose result stays in the program."""
    x, w = linear(dtype, **sizes)
    return Graph.of({"y": library.softmax(x @ w)})


def rows(program: Program) -> list[Any]:
    """What the report tells of products by libraries."""
    told = program.report.launches
    assert told is not None
    return [entry for entry in told() if entry.kind == KIND]


__all__ = ["Card", "absent", "biased", "bound", "card_with_library", "check", "drawn_as", "inner", "linear", "rows"]
