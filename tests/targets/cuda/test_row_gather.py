"""Embeddings, their norm and the product that reads it as one launch: blocks find the rows in the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.errors import DovetailError
from dovetail.ir.dtype import f16, i64
from dovetail.ir.leaf import input, param
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.simulated import SimulatedDriver, drawn_for, target_of
from tests.targets.cuda.test_near_launches import EARLY

WORDS, WIDTH = 10, 64


def _embedded(tokens: int, *, is_kept: bool = False, columns: int = 64) -> Graph:
    """A product of the norm of words and places; `is_kept` where the words are a result too."""
    ids = input("ids", i64[1, tokens])
    words = ops.gather(param("words", f16[WORDS, WIDTH]), ids, axis=0)
    gain, shift, places = param("gain", f16[WIDTH]), param("shift", f16[WIDTH]), param("places", f16[1, tokens, WIDTH])
    y = library.residual_layer_norm(words, places, gain, shift, eps=1e-5)
    y = library.linear(y, param("w", f16[WIDTH, columns]), param("b", f16[columns]))
    return Graph.of({"y": y, "words": words} if is_kept else {"y": y})


def _run(graph: Graph, ids: Any) -> tuple[Any, Any, list[str]]:
    rng, driver = np.random.default_rng(0), SimulatedDriver()
    driver.description = EARLY
    params = {
        str(v.attrs["name"]): rng.standard_normal([int(str(n)) for n in v.shape]).astype(np.float16)
        for v in graph.parameters
    }
    found = dovetail.compile(graph, target=target_of(driver)).bind(params).run({"ids": ids})["y"]
    wanted = evaluate(graph, {"ids": ids}, params=params, lift=True)["y"]
    return found, wanted, [line.removeprefix("launch ") for line in driver.log if line.startswith("launch ")]


@pytest.mark.parametrize("tokens", [16, 13, 20])
def test_blocks_of_the_product_find_the_rows(tokens: int) -> None:
    ids = np.random.default_rng(1).integers(-WORDS, WORDS, (1, tokens))
    found, wanted, launches = _run(_embedded(tokens), ids)
    assert launches == ["contract"]
    assert np.linalg.norm(found.astype(np.float64) - wanted) <= 2e-3 * np.linalg.norm(wanted)


def test_a_norm_of_more_rows_finds_them_too() -> None:
    """The norm is a launch of its own there, and the gather is none."""
    ids = np.random.default_rng(1).integers(-WORDS, WORDS, (1, 40))
    found, wanted, launches = _run(_embedded(40), ids)
    assert launches == ["rows", "contract"]
    assert np.linalg.norm(found.astype(np.float64) - wanted) <= 2e-3 * np.linalg.norm(wanted)


@pytest.mark.parametrize("tokens", [16, 40], ids=["within_product", "within_norm"])
@pytest.mark.parametrize("index", [WORDS, -WORDS - 1])
def test_an_index_that_is_none_is_refused(index: int, tokens: int) -> None:
    ids = np.zeros((1, tokens), np.int64)
    ids[0, 9] = index
    with pytest.raises(DovetailError, match="index"):
        _run(_embedded(tokens), ids)


@pytest.mark.parametrize(("tokens", "name"), [(16, "gather"), (40, "stages")])
def test_rows_that_others_read_are_copied(tokens: int, name: str) -> None:
    """With more rows the gather and the norm are stages of one kernel."""
    assert name in str(_run(_embedded(tokens, is_kept=True), np.zeros((1, tokens), np.int64))[2])


@pytest.mark.parametrize(("tokens", "has_product"), [(16, True), (16, False), (40, False)])
def test_a_table_that_the_result_overwrites_is_copied_first(tokens: int, has_product: bool) -> None:
    """Blocks that are over would have written over rows that others still look for."""
    builder = dovetail.Builder("donated")
    rows = ops.gather(builder.input("table", f16[tokens, WIDTH]), builder.input("ids", i64[tokens]), axis=0)
    gain, shift = builder.param("gain", f16[WIDTH]), builder.param("shift", f16[WIDTH])
    y = library.residual_layer_norm(rows, builder.param("places", f16[tokens, WIDTH]), gain, shift, eps=1e-5)
    if has_product:
        y = library.linear(y, builder.param("w", f16[WIDTH, WIDTH]), builder.param("b", f16[WIDTH]))
    builder.output("y", y, into="table")
    rng, driver, graph = np.random.default_rng(0), SimulatedDriver(), builder.graph()
    driver.description = EARLY
    params = {name: x for name, x in drawn_for(graph).items() if name not in ("table", "ids")}
    program = dovetail.compile(graph, target=target_of(driver)).bind(params)
    assert [found.copied for found in program.plan.donations] == [0]
    # Blocks run backwards here: rows that come first, and last, are overwritten before others need them.
    for moved in (5, -5):
        ids, table = np.roll(np.arange(tokens), moved), rng.standard_normal((tokens, WIDTH)).astype(np.float16)
        wanted = evaluate(graph, {"ids": ids, "table": table.copy()}, params=params, lift=True)["y"]
        found = program.run({"ids": ids, "table": table})["y"]
        assert np.linalg.norm(found.astype(np.float64) - wanted) <= 2e-3 * np.linalg.norm(wanted)
