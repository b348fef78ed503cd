"""When cuBLASLt computes a product: times that decide, what is kept, what refuses it, and what a report tells."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dovetail
from dovetail import Graph, input, library, ops, param
from dovetail.dtypes import bf16, bool_, f16, f32, f64, i32
from dovetail.errors import DeviceError
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType
from dovetail.plan.plan import make_plan
from dovetail.report.text import as_text
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.library import call as library_call
from dovetail.targets.cuda.library import choice as library_choice
from dovetail.targets.cuda.library import considered as library_considered
from dovetail.targets.cuda.library import cublaslt
from dovetail.targets.cuda.library import trial as library_trial
from dovetail.targets.cuda.library.choice import KIND, Decision, LibraryChoice, parsed
from dovetail.targets.cuda.runs import run
from dovetail.targets.runtime.building.store import CodeStore, StoreKey
from tests.block_arrays import block_weights, random_blocks
from tests.targets.cuda.fake_cublaslt import NOT_SUPPORTED
from tests.targets.cuda.library_card import (
    Card,
    absent,
    biased,
    bound,
    card_with_library,
    check,
    drawn_as,
    linear,
    rows,
)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    return card_with_library(monkeypatch)


@pytest.mark.slow
def test_a_decision_is_kept_for_later_processes(card: Card, tmp_path: Path) -> None:
    graph = biased()
    bound(card, graph, tmp_path)
    card.library.calls.clear()
    for tune in ("auto", "off"):
        program, feeds = bound(card, graph, tmp_path, tune=tune)
        check(graph, program.run(feeds))
        assert "cublaslt" in card.launches()
    assert "cublasLtMatmulAlgoGetHeuristic" not in card.library.calls
    assert card.library.calls.count("cublasLtMatmulAlgoCheck") == 2
    bound(card, graph, tmp_path, tune="always")
    assert "cublasLtMatmulAlgoGetHeuristic" in card.library.calls


@pytest.mark.slow
def test_a_slower_library_is_not_taken_and_not_loaded_again(card: Card, tmp_path: Path) -> None:
    card.library.seconds = 1.0
    graph = biased()
    for tune in ("always", "auto"):
        program, feeds = bound(card, graph, tmp_path, tune=tune)
        card.library.calls.clear()
        check(graph, program.run(feeds))
        assert card.launches() == ["contract"]
    program, feeds = bound(card, graph, tmp_path, tune="auto")
    assert not card.library.calls
    (row,) = [e for e in rows(program) if e.way == "cublaslt"]
    assert not row.taken and row.condition == "library_is_faster" and "1001.0 µs" in row.reason


def test_five_percent_decide(card: Card) -> None:
    own = 1e-3
    for seconds, taken in ((own * 0.96, False), (own * 0.94, True)):
        found = Decision.timed(own, seconds, cublaslt.Algorithm((1,) * 8, 0))
        assert (found.algorithm is not None) == taken == (found.refused is None)


@pytest.mark.slow
def test_the_report_tells_both_times(card: Card, tmp_path: Path) -> None:
    program, _ = bound(card, biased(), tmp_path)
    lt, ours = rows(program)
    assert lt.way == "cublaslt" and lt.taken and not ours.taken and ours.way == "launch"
    assert lt.found.startswith("cuBLASLt ") and lt.found.endswith("dovetail 1001.0 µs")
    told = [" ".join(line.split()) for line in as_text(program.report, everything=True).splitlines()]
    assert f"LAUNCHES 1 × linear cublaslt: {lt.found}" in told


@pytest.mark.slow
def test_the_report_tells_why_nothing_is_known(card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cache, condition in (("off", "there_is_a_cache"), (str(tmp_path), "a_bind_measured_it")):
        (row,) = rows(card.compile(biased(), cache, "auto"))
        assert not row.taken and row.condition == condition and row.hint
    (row,) = rows(card.compile(biased(), tmp_path, "auto", libraries="off"))
    assert row.condition == "libraries_are_on"
    for module in (run, library_considered):
        monkeypatch.setattr(module, "place", absent)
    (row,) = rows(card.compile(biased(), tmp_path, "auto"))
    assert row.condition == "the_library_is_installed" and "dovetail-ml[cublas]" in row.hint


@pytest.mark.slow
def test_off_is_off(card: Card, tmp_path: Path) -> None:
    bound(card, biased(), tmp_path)
    card.library.calls.clear()
    program, feeds = bound(card, biased(), tmp_path, libraries="off")
    check(biased(), program.run(feeds))
    assert card.launches() == ["contract"] and not card.library.calls


@pytest.mark.slow
def test_without_a_cache_nothing_is_measured_unless_all_is(card: Card) -> None:
    for tune in ("auto", "off"):
        bound(card, biased(), tune=tune)
    assert not card.library.calls


@pytest.mark.slow
def test_auto_measures_no_short_product(card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (library_choice, library_considered):
        monkeypatch.setattr(module, "LEAST_SECONDS", 1e-5)
    program, _ = bound(card, biased(), tmp_path, tune="auto")
    assert not card.library.calls
    (row,) = rows(program)
    assert row.condition == "time_may_be_saved" and "µs" in row.found
    monkeypatch.setattr(library_choice, "LEAST_SECONDS", 1e-9)
    bound(card, biased(), tmp_path, tune="auto")
    assert card.library.calls


@pytest.mark.parametrize(
    ("dtype", "rows", "even", "micros", "found"),
    [
        (f32, 4096, True, 3000, ""),
        (f64, 4096, True, 4000, ""),
        (bf16, 4096, True, 400, ""),
        (bf16, 4096, True, 190, "96% of the peak by the estimate"),
        (bf16, 4096, False, 190, ""),
        (f32, 1, True, 15, "91% of the bandwidth by the estimate"),
        (f32, 1, True, 30, ""),
        (bf16, 1, True, 9, "9.0 µs by the estimate"),
    ],
)
def test_auto_measures_what_may_gain(
    card: Card, dtype: DType, rows: int, even: bool, micros: float, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rows × 4096 × 4096: f32 and f64, lines that are not even, and 16-bit floats far from the peak of an H200."""

    def seconds(*_: object) -> float:
        return micros * 1e-6

    monkeypatch.setattr(library_choice, "LEAST_SECONDS", 1e-5)
    monkeypatch.setattr(LibraryChoice, "seconds", seconds)
    choice = LibraryChoice(make_plan(biased(), target=CLAIMS), card.driver, None, "auto", "", {})
    a, b = cublaslt.MatrixLayout(dtype, 4096, 4096, 4096), cublaslt.MatrixLayout(dtype, 4096, rows, 4096)
    made: Any = SimpleNamespace(problem=cublaslt.Problem(a, b, b), is_even=even, flops=2 * rows * 4096**2)
    refused = choice.in_vain(made, ())
    assert (refused.found if refused is not None else "") == found


STEPS = [
    "cublasLtCreate",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoCheck",
]


@pytest.mark.parametrize("name", STEPS)
def test_a_library_that_fails_leaves_the_program_to_our_kernels(card: Card, name: str, tmp_path: Path) -> None:
    card.library.fail[name] = NOT_SUPPORTED
    graph = biased()
    program, feeds = bound(card, graph, tmp_path)
    check(graph, program.run(feeds))
    assert card.launches() == ["contract"]
    (row,) = rows(program)
    assert row.condition == "the_library_multiplies" and f"{name}: status 15" in row.found
    # What failed is known, and is not tried again.
    card.library.calls.clear()
    program, feeds = bound(card, graph, tmp_path, tune="auto")
    check(graph, program.run(feeds))
    assert not card.library.calls


def test_a_library_that_does_not_load_is_none(card: Card, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(_: str) -> Any:
        raise cublaslt.Failed("cuBLASLt does not load: no file")

    monkeypatch.setattr(library_call, "loaded", missing)
    program, feeds = bound(card, biased(), tmp_path)
    check(biased(), program.run(feeds))
    assert "no file" in rows(program)[0].found


def test_a_kept_algorithm_that_the_library_refuses_is_not_used(card: Card, tmp_path: Path) -> None:
    bound(card, biased(), tmp_path)
    card.library.fail["cublasLtMatmulAlgoCheck"] = NOT_SUPPORTED
    program, feeds = bound(card, biased(), tmp_path, tune="auto")
    check(biased(), program.run(feeds))
    assert card.launches() == ["contract"] and "AlgoCheck" in rows(program)[0].found


def test_a_library_that_fails_in_a_run_is_a_typed_error(card: Card) -> None:
    program, feeds = bound(card, biased())
    card.library.fail["cublasLtMatmul"] = 13
    with pytest.raises(DeviceError, match="status 13") as raised:
        program.run(feeds)
    assert "libraries" in raised.value.hint and not raised.value.is_lost
    card.driver.library.sticky = 700
    with pytest.raises(DeviceError, match="lost") as raised:
        program.run(feeds)
    assert raised.value.is_lost


def test_no_memory_for_trials_is_no_decision(card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as short:
        short.setattr(library_trial, "MOST_MEMORY", 0.0)
        program, feeds = bound(card, biased(), tmp_path)
        check(biased(), program.run(feeds))
        assert card.launches() == ["contract"]
    assert not list(CodeStore(tmp_path, 1 << 20).keys(KIND))
    program, feeds = bound(card, biased(), tmp_path)
    program.run(feeds)
    assert "cublaslt" in card.launches()


def test_trials_give_their_memory_back(card: Card, tmp_path: Path) -> None:
    def bytes_of(tune: str) -> int:
        program, feeds = bound(card, biased(), tmp_path, tune=tune)
        program.run(feeds)
        gc.collect()
        found = sum(map(len, card.driver.memory.values()))
        del program
        gc.collect()
        return found

    assert bytes_of("always") == bytes_of("auto")


def test_content_that_is_no_decision_is_measured_again(card: Card, tmp_path: Path) -> None:
    bound(card, biased(), tmp_path)
    store = CodeStore(tmp_path, 1 << 20)
    (words,) = store.keys(KIND)
    key = StoreKey(KIND, {name: part for name, part in words.items() if name != "kind"})
    good = store.get(key)
    assert good is not None and parsed(good) is not None
    for content in (
        b"",
        b"[]",
        b"{}",
        good.replace(b'"workspace": 0', b'"workspace": -1'),
        good.replace(b"[1,", b"[-1,"),
    ):
        assert content != good and parsed(content) is None


def in_blocks() -> Graph:
    builder = dovetail.Builder("blocks")
    x = builder.input("x", f32[24, 64])
    builder.output("y", x @ block_weights(builder, "w", "q4_0", random_blocks("q4_0", 16, 64, 1)))
    return builder.graph()


def norm_after() -> Graph:
    """A product in parts, which the norm after it adds up."""
    x, w = input("x", f16[16, 1536]), param("w", f16[1536, 64])
    residual, gain, shift = input("residual", f16[16, 64]), param("gain", f16[64]), param("shift", f16[64])
    return Graph.of({"y": library.residual_layer_norm(residual, x @ w, gain, shift, eps=1e-5)})


def late() -> Graph:
    x, w = linear()
    places = ops.squeeze(ops.nonzero(input("mask", bool_[64]), count=symbol("kept")), axes=(-2,))
    return Graph.of({"y": library.gelu(x @ w), "z": places})


REFUSED: dict[str, tuple[Graph, str]] = {
    "batch": (Graph.of({"y": input("x", f32[3, 24, 32]) @ input("w", f32[3, 32, 40])}), "product_has_no_batch"),
    "integers": (Graph.of({"y": input("x", i32[24, 32]) @ input("w", i32[32, 40])}), "factors_have_one_dtype"),
    "late": (late(), "sizes_are_known"),
    "symbol": (Graph.of({"y": input("x", f32["n", 32]) @ param("w", f32[32, 40])}), "sizes_are_known"),
    "streams": (
        Graph.of({"y": library.swiglu(input("x", f32[24, 32]), param("w", f32[32, 40]), param("v", f32[32, 40]))}),
        "step_is_one_product",
    ),
    "lines": (
        Graph.of({"y": input("x", f32[24, 64])[:, ::2] @ param("w", f32[32, 40])}),
        "factors_are_dense_along_an_axis",
    ),
    "parts": (norm_after(), "kernels_are_of_the_step_alone"),
    "blocks": (in_blocks(), "weights_are_not_in_blocks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_does_not_compute_is_told(card: Card, name: str, tmp_path: Path) -> None:
    graph, condition = REFUSED[name]
    program = card.compile(graph, tmp_path, "always")
    sizes = {"n": 24}
    drawn = {str(v.attrs["name"]): drawn_as(v, sizes) for v in (*graph.inputs, *graph.parameters)}
    program.bind({str(v.attrs["name"]): drawn[str(v.attrs["name"])] for v in graph.parameters})
    program.run({str(v.attrs["name"]): drawn[str(v.attrs["name"])] for v in graph.inputs})
    assert "cublaslt" not in card.launches()
    (row,) = rows(program)
    assert (row.taken, row.condition) == (False, condition) and row.found and row.hint


def test_strict_programs_keep_the_order_of_their_sums(card: Card, tmp_path: Path) -> None:
    program, _ = bound(card, biased(), tmp_path, strict=True)
    assert not card.library.calls and {row.condition for row in rows(program)} == {"sums_may_be_reordered"}


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Two packages that may have the library, and a loader that knows none by name."""

    def folders_of() -> list[Path]:
        return [tmp_path / "one", tmp_path / "two"]

    def loads(_: str) -> bool:
        return False

    for folder in folders_of():
        folder.mkdir()
    monkeypatch.setattr(cublaslt, "_folders", folders_of)
    monkeypatch.setattr(cublaslt, "_loads", loads)
    cublaslt.place.cache_clear()
    yield tmp_path
    cublaslt.place.cache_clear()


def test_the_newest_library_that_the_driver_runs_is_found(folders: Path) -> None:
    assert cublaslt.place(13) is None and "pip install" in cublaslt.described(13)
    cublaslt.place.cache_clear()
    old, new = folders / "one" / "libcublasLt.so.12", folders / "two" / "libcublasLt.so.13"
    old.write_bytes(b"old")
    new.write_bytes(b"newer")
    assert (cublaslt.place(13), cublaslt.place(12), cublaslt.place(11)) == (str(new), str(old), None)
    # A file is told from others without being loaded, which these could not be.
    assert cublaslt.identity(str(new)) == "libcublasLt.so.13, 5 bytes"
    assert cublaslt.described(13).startswith("does not load: ")
    with pytest.raises(cublaslt.Failed):
        cublaslt.loaded(str(new))
