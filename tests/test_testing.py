"""`dovetail.testing`: assertions about fusions name the places that lack one."""

from __future__ import annotations

import pytest

import dovetail
from dovetail import Value, fused_op, library
from dovetail.models import LlamaShape, llama
from dovetail.testing import LawError, assert_fused, check_op

SHAPE = LlamaShape(layers=2, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=100)


@pytest.fixture(scope="module")
def program() -> dovetail.Program:
    return dovetail.compile(llama(SHAPE, batch=1, seq=8), target="cpu", params=None)


def test_what_fused_everywhere_passes(program: dovetail.Program) -> None:
    assert_fused(program, rule="swiglu")
    assert_fused(program, rule="swiglu", count=2)
    assert_fused(program, "layers.*", rule="swiglu", count=2)
    assert_fused(program.report, "layers.0", rule="swiglu", count=1)


def test_what_did_not_fuse_is_named() -> None:
    apart = dovetail.compile(llama(SHAPE, batch=1, seq=8), target="cpu", without=["swiglu", "wide_swiglu"])
    with pytest.raises(AssertionError, match=r"layers\.0, layers\.1"):
        assert_fused(apart, "layers.*", rule="swiglu")
    with pytest.raises(AssertionError, match="made 0 kernels"):
        assert_fused(apart, rule="swiglu")


def test_a_wrong_count_and_a_place_that_is_not_there(program: dovetail.Program) -> None:
    with pytest.raises(AssertionError, match="made 2 kernels"):
        assert_fused(program, rule="swiglu", count=3)
    with pytest.raises(AssertionError, match="no node of"):
        assert_fused(program, "encoder.*", rule="swiglu")


def test_every_law_is_checked_for_an_op_made_of_others() -> None:
    check_op(library.silu)
    check_op(library.residual_rms_norm)


def test_a_spelling_that_computes_something_else_breaks_a_law() -> None:
    @fused_op(shapes="x[*] y[*]")
    def halved(x: Value, y: Value) -> Value:
        """Half of the difference."""
        return (x - y) * 0.5

    @halved.spelling
    def reversed(x: Value, y: Value) -> Value:
        return (y - x) * 0.5

    assert reversed is not None
    with pytest.raises(LawError, match="differ at y0"):
        check_op(halved)


def test_a_guard_that_never_refuses_breaks_a_law() -> None:
    @fused_op(shapes="x[*] y[*]")
    def halved(x: Value, y: Value) -> Value:
        """Half of the difference."""
        return (x - y) * 0.5

    @halved.requires(reason="never", hint="nothing to do")
    def always(x: Value) -> bool:
        return True

    assert always is not None
    with pytest.raises(LawError):
        check_op(halved)
