"""Trials of cuBLASLt and our kernels: weights that L2 does not hold in a program come from memory in them too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from dovetail import Graph, input, library, ops, param
from dovetail.dtypes import bf16, f32
from dovetail.ir.value import Value
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.library import trial as library_trial
from dovetail.targets.cuda.library.choice import KIND
from dovetail.targets.cuda.library.trial import runs_of
from dovetail.targets.cuda.library.weights import are_cold, weight_bytes
from dovetail.targets.cuda.runs.run import steps_of
from dovetail.targets.runtime.building.store import CodeStore
from tests.targets.cuda.fake_cublaslt import WORKSPACE
from tests.targets.cuda.fake_graph import Node
from tests.targets.cuda.library_card import Card, bound, card_with_library, check, linear, rows

RUNS = 3
"""The most of a graph whose weights are in L2."""
TABLE = 2048
"""Numbers of another parameter, which the program reads in each run too."""
OURS = ("contract", "contract_parts")
"""The names that kernels of ours may have."""


@dataclass
class Launches:
    """What has run of our kernels."""

    found: list[tuple[str, Mapping[str, int]]] = field(default_factory=list[tuple[str, Mapping[str, int]]])
    """The name of each, and the address of each pointer."""
    starts: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """What was at each address, or the first of it."""

    def addresses(self, kernel: str) -> dict[str, list[int]]:
        """The addresses that runs of a kernel had, by pointer."""
        of = [pointers for name, pointers in self.found if name == kernel]
        return {name: [pointers[name] for pointers in of] for name in (of[0] if of else ())}

    def moved(self, kernel: str) -> list[list[int]]:
        """Those of pointers that have several."""
        return [found for found in self.addresses(kernel).values() if len({*found}) > 1]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    made = card_with_library(monkeypatch)
    monkeypatch.setattr(library_trial, "MOST_RUNS", RUNS)
    return made


@pytest.fixture
def launches(card: Card, monkeypatch: pytest.MonkeyPatch) -> Launches:
    driver, made = card.driver.library, Launches()
    run = driver.__getattribute__("_run")

    def recorded(node: Node) -> None:
        if node.kernel is not None:
            pointers = dict(zip(node.kernel.pointers, node.arguments, strict=False))
            made.found.append((node.kernel.name, pointers))
            for address in pointers.values():
                content, start = driver.found(address)
                made.starts[address] = content[start : start + 2048].tobytes()
        run(node)

    monkeypatch.setattr(driver, "_run", recorded)
    return made


def with_table(y: Value, numbers: int = TABLE) -> Graph:
    """A program that has other weights, of 4 bytes each."""
    return Graph.of({"y": y, "z": input("v", f32[numbers]) + param("t", f32[numbers])})


def biased() -> Graph:
    """A product whose weights are 24 × 40 numbers and a bias of 40: 4,000 bytes."""
    x, w = linear(depth=24)
    return with_table(library.gelu(x @ w + param("b", f32[40])))


def with_l2(card: Card, nbytes: int) -> None:
    card.driver.description = replace(card.driver.description, l2_bytes=nbytes)


def in_turn(copies: int, apart: int) -> list[int]:
    """How far from the first copy each run reads: one run twice, then a graph twice that reads each copy."""
    return [at % copies * apart for at in range(2)] + [at * apart for at in range(copies)] * 2


def distances(found: Sequence[int]) -> list[int]:
    return [address - min(found) for address in found]


def test_each_run_reads_another_copy_of_the_weights(card: Card, launches: Launches) -> None:
    """12,192 bytes of weights, and an L2 of 6,000: three copies of 4,000 are twice L2."""
    with_l2(card, 6000)
    program, feeds = bound(card, biased())
    moved = launches.moved("contract")
    assert sorted(map(distances, moved)) == [in_turn(3, 256), in_turn(3, 3840)], "a bias and a matrix"
    assert len(moved) < len(launches.addresses("contract")), "activations stay"
    # Zeros, or what memory had before, would give other clocks.
    (matrix,) = [found for found in moved if max(distances(found)) == 2 * 3840]
    assert all([0.9 < np.frombuffer(launches.starts[at], np.float32).std() < 1.1 for at in matrix])
    of_library = list(zip(*card.library.ran, strict=True))
    assert [len({*found}) for found in of_library] == [3, 1, 1], "activations stay"
    # Two algorithms have one run twice each; then their graphs run, which are as long.
    singles = [(2 + at) % 3 * 3840 for at in range(4)]
    assert distances(of_library[0]) == [*singles, *[at * 3840 for at in range(3)] * 4]
    assert {*of_library[0]} == {*matrix}, "ways share tensors"
    assert [len({*found}) for found in launches.moved("library_sum")] == [3], "a bias"
    check(biased(), program.run(feeds))


@pytest.mark.parametrize("nbytes", [50 << 20, 12_192])
def test_weights_that_fit_l2_have_no_copies(card: Card, launches: Launches, nbytes: int) -> None:
    with_l2(card, nbytes)
    bound(card, biased())
    # The card takes a millisecond for ours: a run twice, and a graph of one run twice.
    ours = launches.addresses("contract")
    assert ours and {len(found) for found in ours.values()} == {4} and not launches.moved("contract")
    assert len(card.library.ran) == 2 * (2 + 2 * RUNS) and len({*card.library.ran}) == 1


def test_short_memory_is_fewer_copies(card: Card, launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once x, y, and the sums, a copy of x and what an algorithm takes in the workspace; then the copies."""
    x, y, weights = 24 * 24 * 4, 24 * 40 * 4, 3840 + 256
    shared = x + y + (x + y + WORKSPACE)
    with_l2(card, 6000)
    rooms = [shared + 2 * weights, shared + 2 * weights - 1, shared + weights - 1]
    for room, copies in zip(rooms, (2, 1, 0), strict=True):

        def free(room: int = room) -> tuple[int, int]:
            return 2 * room, 1 << 30

        monkeypatch.setattr(card.driver, "free_memory", free)
        launches.found.clear()
        card.library.ran.clear()
        program, feeds = bound(card, biased())
        assert len({a for a, _, _ in card.library.ran}) == copies
        assert len(launches.moved("contract")) == (2 if copies > 1 else 0)
        check(biased(), program.run(feeds))
        assert ("cublaslt" in card.launches()) == (copies > 0)


def test_packed_weights_have_copies(card: Card, launches: Launches) -> None:
    """Ours and those that the library reads: 131,072 bytes, of which two copies are twice L2."""
    x, w = linear(bf16, rows=4, depth=256, columns=256)
    with_l2(card, 100_000)
    bound(card, with_table(library.softmax(x @ w)))
    (packed,) = [found for name in OURS for found in launches.moved(name)]
    assert distances(packed) == in_turn(2, max(distances(packed))) and max(distances(packed)) >= 131_072
    (content,) = {launches.starts[at] for at in packed}
    assert len({*content}) > 100, "numbers"
    of_library = list(zip(*card.library.ran, strict=True))
    assert [len({*found}) for found in of_library] == [2, 1, 1] and not {*of_library[0]} & {*packed}


def test_a_product_of_activations_has_no_copies(card: Card, launches: Launches) -> None:
    x, w = linear(depth=24)
    with_l2(card, 1000)
    bound(card, with_table(library.softmax(x @ input("w", w.tensor))))
    assert launches.addresses("contract") and not launches.moved("contract")
    assert len(card.library.ran) == 2 * (2 + 2 * RUNS) and len({*card.library.ran}) == 1


def test_a_larger_program_has_its_own_decision(card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same product where L2 holds all weights, and where it does not."""
    for name in ("MOST_COPIES", "MOST_RUNS"):
        monkeypatch.setattr(library_trial, name, 1)
    x, w = linear(depth=32)
    with_l2(card, 20_000)
    for numbers, decisions in ((TABLE, 1), (TABLE + 1, 1), (2 * TABLE, 2)):
        program, _ = bound(card, with_table(library.gelu(x @ w), numbers), tmp_path)
        assert len(list(CodeStore(tmp_path, 1 << 20).keys(KIND))) == decisions
        assert rows(program)[0].taken


def test_weights_are_counted_as_they_are_read() -> None:
    """A part of a parameter by its kernel, all of it once by a program, and what the bind phase makes of it."""
    x, w = input("x", f32[24, 32]), param("w", f32[32, 64])
    parts = Graph.of({"y": library.softmax(x @ w[:, :16]), "z": library.softmax(x @ w[:, 16:])})
    made = Graph.of({"y": library.softmax(x @ ops.exp(w)), "z": input("v", f32[64]) + w[0]})
    twice = Graph.of({"y": library.softmax(x @ w), "z": library.softmax(x @ w[:, :16])})
    expected = (parts, {0, 2048, 6144}, 8192), (made, {0, 8192, 256}, 8192 + 256), (twice, {0, 8192, 2048}, 8192)
    for graph, each, together in expected:
        plan = make_plan(graph, target=CLAIMS)
        steps = [kernels for _, kernels in steps_of(plan)]
        assert {weight_bytes(plan, kernels or ()) for kernels in steps} == each
        assert [are_cold(plan, steps, nbytes) for nbytes in (together - 1, together)] == [True, False]


@pytest.mark.parametrize(
    ("micros", "copies", "runs"),
    [(1, 1, 16), (100, 1, 10), (9000, 1, 1), (24, 43, 43), (100, 11, 11), (60, 6, 12), (200, 43, 25), (9000, 43, 1)],
)
def test_a_graph_has_whole_rounds_of_copies(
    monkeypatch: pytest.MonkeyPatch, micros: float, copies: int, runs: int
) -> None:
    """About a millisecond, or until every copy is read, if that takes less than five."""
    monkeypatch.setattr(library_trial, "MOST_RUNS", 16)
    assert runs_of(micros * 1e-6, copies) == runs


def test_ways_far_from_the_fastest_are_told_by_one_run(
    card: Card, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ours takes 10 µs and both algorithms far more: they have no graphs, and the report has their times anyway."""
    first = iter([1e-5, 9e-5, 8e-5])

    def timed(*_: object) -> float:
        return next(first, 3e-5)

    monkeypatch.setattr(library_trial.Trial, "_timed", timed)
    program, _ = bound(card, biased(), tmp_path)
    told = {row.way: row for row in rows(program)}
    assert [way for way, row in told.items() if row.taken] == ["launch"]
    assert "found 80.0 µs" in told["cublaslt"].reason
