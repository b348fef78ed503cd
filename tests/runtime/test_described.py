"""Graphs that a text describes are built where the cache does not know them, and reports without a compilation."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail import Graph, ops
from dovetail.errors import OptionError
from dovetail.ir.dtype import f32
from dovetail.ir.leaf import input
from dovetail.language import LanguageModel
from dovetail.runtime.compile import Compilation
from dovetail.runtime.program import Program
from dovetail.runtime.source import Described
from tests.gguf_files import decoder, written


class Scaled:
    """A graph that multiplies, and how often it was built."""

    def __init__(self, factor: float) -> None:
        self.factor, self.built = factor, 0

    def build(self) -> Graph:
        self.built += 1
        return Graph.of(ops.relu(input("x", f32["n", 4])) * self.factor, name="scaled")

    @property
    def described(self) -> Described:
        return Described(f"scaled by {self.factor}", self.build)


def _result(program: Program) -> float:
    (found,) = program.run({"x": np.ones((3, 4), np.float32)}).values()
    return float(found[0, 0])


def test_a_described_graph_is_built_once_for_a_cache(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    first, again = Scaled(2.0), Scaled(2.0)
    assert _result(dovetail.compile(first.described, cache=folder)) == 2.0 and first.built == 1
    program = dovetail.compile(again.described, cache=folder)
    assert _result(program) == 2.0 and again.built == 0
    assert str(program.report) and again.built == 1


def test_another_text_is_another_graph(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    assert [_result(dovetail.compile(Scaled(f).described, cache=folder)) for f in (2.0, 3.0, 2.0)] == [2.0, 3.0, 2.0]


def test_without_a_cache_every_program_builds_it() -> None:
    scaled = Scaled(2.0)
    assert [_result(dovetail.compile(scaled.described, cache="off")) for _ in range(2)] == [2.0, 2.0]
    assert scaled.built == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("field", ["rope.freq_base", "attention.layer_norm_rms_epsilon"])
def test_models_that_differ_in_a_number_do_not_share_programs(field: str, tmp_path: Path) -> None:
    """Their files have the same tensors: what their graphs have in them is the difference."""
    found: dict[tuple[float, str], np.ndarray] = {}
    for number in (0.5, 2.0):
        fields, tensors = decoder()
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(written({**fields, f"llama.{field}": number}, tensors))
        for cache in (str(tmp_path / "cache"), "off"):
            found[number, cache] = LanguageModel(path, cache=cache).session().extend([3, 14, 15, 9])
        assert np.array_equal(found[number, "off"], found[number, str(tmp_path / "cache")])
    assert not np.array_equal(found[0.5, "off"], found[2.0, "off"])


def _compilations() -> int:
    gc.collect()
    return sum(isinstance(found, Compilation) for found in gc.get_objects())


@pytest.mark.slow
def test_a_report_without_its_compilation_is_the_same() -> None:
    before = _compilations()
    graph = Scaled(2.0).build()
    program, other = dovetail.compile(graph, cache="off"), dovetail.compile(graph, cache="off")
    assert _compilations() == before + 2
    program.reports.release()
    assert _compilations() == before + 1
    assert str(program.report) == str(other.report)


def test_a_program_that_was_made_without_a_report_says_so() -> None:
    made = dovetail.compile(Scaled(2.0).build(), cache="off")
    with pytest.raises(OptionError, match="without a report"):
        _ = Program(made.plan, None).report
