"""The code of parts of resident kernels before their words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from dovetail.kernels.loops import resident
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    AwaitPhase,
    Barrier,
    Call,
    CopyBulk,
    Expr,
    Extent,
    LoadMatrices,
    Loop,
    MultiplyMatrices,
    Receive,
    Statement,
    Store,
    When,
)
from dovetail.kernels.loops.resident_code import TURN, Still
from dovetail.kernels.loops.resident_words import SPARE, START
from dovetail.targets.cuda.gpu_kernel import GpuKernel
from dovetail.targets.cuda.ptx_compiler import to_ptx
from tests.targets.cuda.few_layers import COPYING, layers, ran, resident_of


def _as_it_is(part: Statement, passes: int, still: Still) -> Statement:
    return part


def _turns(made: GpuKernel) -> list[Loop]:
    return [s for s in everything(made.kernel.body) if isinstance(s, Loop) and s.variable == TURN]


def _guarded(body: Sequence[Statement], guards: tuple[Expr, ...] = ()) -> Iterator[tuple[Statement, tuple[Expr, ...]]]:
    for s in body:
        yield s, guards
        if isinstance(s, When):
            yield from _guarded(s.body, (*guards, s.condition))
        elif isinstance(s, Loop):
            yield from _guarded(s.body, guards)


def test_results_are_those_without_code_that_comes_early(monkeypatch: pytest.MonkeyPatch) -> None:
    device = replace(COPYING, multiprocessors=6)
    graph = layers(4, width=128, inner=256)
    assert _turns(resident_of(graph, device))
    found, wanted = ran(graph, device)
    monkeypatch.setattr(resident, "with_code_first", _as_it_is)
    assert not _turns(resident_of(graph, device))
    np.testing.assert_array_equal(found, ran(graph, device)[0])
    assert np.linalg.norm(found.astype(np.float64) - wanted) <= 1e-2 * np.linalg.norm(wanted)


def test_the_first_turn_receives_nothing_and_sends_what_no_block_receives() -> None:
    made = resident_of(layers(4), COPYING)
    for turn in _turns(made):
        first = turn.body[0]
        assert isinstance(first, When) and isinstance(first.body[0], Receive)
        is_real = first.condition
        for s, guards in _guarded(turn.body):
            if isinstance(s, (Barrier, Receive)):
                assert is_real in guards
            if isinstance(s, Store) and s.tensor.space == "stamped":
                assert isinstance(s.at[0], Call) and s.at[0].op == "where"
                assert s.at[0].operands[0] == is_real and s.at[0].operands[2] == Extent(made.kernel.passes + 1)
            elif isinstance(s, Store) and s.tensor.space != "private":
                assert is_real in guards
    # The words that nothing receives follow those of all passes.
    words = [s.tensor.strides[0] for s in everything(made.kernel.body) if isinstance(s, Store) and len(s.at) > 2]
    nbytes = [n for n in words if isinstance(n, int)]
    assert made.counter_bytes == START + max(nbytes) * (made.kernel.passes + SPARE)


def test_the_first_turn_loads_nothing_that_others_write() -> None:
    """Weights that have arrived are all that it reads: copies of other parts and words are on their way."""
    made = resident_of(layers(4), COPYING)
    every = (*everything(made.kernel.stream), *everything(made.kernel.early), *everything(made.kernel.body))
    copied = {s.target.pointer for s in every if isinstance(s, CopyBulk)}
    assert _turns(made)
    for turn in _turns(made):
        ordered = [s for s in everything(turn.body) if isinstance(s, (AwaitPhase, LoadMatrices, MultiplyMatrices))]
        assert isinstance(ordered[0], AwaitPhase)
        loads = [s for s in ordered if isinstance(s, LoadMatrices)]
        own = {s.source.pointer for s in loads} & copied
        for load in loads:
            assert (load.source.pointer if load.condition is None else load.otherwise) in own


def test_code_is_not_repeated_for_the_first_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    with_turns = to_ptx(resident_of(layers(4), COPYING).text, "sm_90a")
    monkeypatch.setattr(resident, "with_code_first", _as_it_is)
    without = to_ptx(resident_of(layers(4), COPYING).text, "sm_90a")
    for instruction in ("mma.sync", "ldmatrix", "st.relaxed", "ld.relaxed"):
        assert with_turns.count(instruction) == without.count(instruction)
