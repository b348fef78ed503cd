"""`dovetail.testing`: assertions about fusions name the places that lack one; `check_op` checks every law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dovetail
from dovetail import Value, fused_op, library, ops
from dovetail.derive import gradient_laws, laws
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.models import LlamaShape, llama
from dovetail.testing import LawError, assert_fused, check_op, forget, parts_of

SHAPE = LlamaShape(layers=2, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=100)


@pytest.fixture(scope="module")
def program() -> dovetail.Program:
    return dovetail.compile(llama(SHAPE, batch=1, seq=8), target="cpu", params=None)


@pytest.mark.slow
def test_what_fused_everywhere_passes(program: dovetail.Program) -> None:
    assert_fused(program, rule="swiglu")
    assert_fused(program, rule="swiglu", count=2)
    assert_fused(program, "layers.*", rule="swiglu", count=2)
    assert_fused(program.report, "layers.0", rule="swiglu", count=1)


@pytest.mark.slow
def test_what_did_not_fuse_is_named() -> None:
    apart = dovetail.compile(llama(SHAPE, batch=1, seq=8), target="cpu", without=["swiglu", "wide_swiglu"])
    with pytest.raises(AssertionError, match=r"layers\.0, layers\.1"):
        assert_fused(apart, "layers.*", rule="swiglu")
    with pytest.raises(AssertionError, match="made 0 kernels"):
        assert_fused(apart, rule="swiglu")


@pytest.mark.slow
def test_a_wrong_count_and_a_place_that_is_not_there(program: dovetail.Program) -> None:
    with pytest.raises(AssertionError, match="made 2 kernels"):
        assert_fused(program, rule="swiglu", count=3)
    with pytest.raises(AssertionError, match="no node of"):
        assert_fused(program, "encoder.*", rule="swiglu")


@pytest.mark.slow
def test_ops_of_the_library_pass() -> None:
    for op in (library.silu, library.residual_layer_norm):
        check_op(op)


@pytest.mark.slow
def test_every_law_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    called: set[str] = set()

    def noted(name: str) -> Callable[..., None]:
        def note(*_: Any, **__: Any) -> None:
            called.add(name)

        return note

    every = {(name, module) for module in (laws, gradient_laws) for name in vars(module) if name.startswith("check_")}
    for name, module in every:
        monkeypatch.setattr(module, name, noted(name))
    for op in library.ALL:
        check_op(op)
    assert called == {name for name, _ in every}


def test_a_spelling_that_computes_something_else_is_found() -> None:
    @fused_op(shapes="x[*] y[*]")
    def halved(x: Value, y: Value) -> Value:
        """Half of the difference."""
        return (x - y) * 0.5

    @halved.spelling
    def the_other_way(x: Value, y: Value) -> Value:
        return (y - x) * 0.5

    with pytest.raises(LawError, match="the_other_way"):
        check_op(halved)


@pytest.mark.slow
def test_a_guard_that_never_refuses_is_found() -> None:
    @fused_op(shapes="x[*]")
    def doubled(x: Value) -> Value:
        """Twice the tanh."""
        return ops.tanh(x) * 2.0

    @doubled.requires(reason="never", hint="none")
    def it_is_a_tensor(x: Value) -> bool:
        return True

    with pytest.raises(LawError, match="it_is_a_tensor never refuses"):
        check_op(doubled)


def test_parts_come_before_what_is_made_of_them() -> None:
    for op in library.ALL:
        parts = parts_of(op)
        assert parts == [part for part in library.ALL if part in parts]
        assert set(op.parts) <= set(parts) and all(set(part.parts) <= set(parts) for part in parts)

    @fused_op(shapes="x[*]")
    def twice(x: Value) -> Value:
        return library.silu(library.silu(x))

    @fused_op(shapes="x[*]")
    def four_times(x: Value) -> Value:
        return twice(twice(x))

    assert parts_of(four_times) == [library.silu, twice]


@pytest.mark.slow
def test_forget_drops_traces_and_scalars() -> None:
    x = leaf.input("x", f32[3, 5])
    first = library.silu.traced((x.type,), {})
    assert library.silu.traced((x.type,), {}) is first
    forget()
    assert library.silu.traced((x.type,), {}) is not first
