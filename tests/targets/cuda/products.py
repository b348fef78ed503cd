"""Graphs for the kernels of products and attention on GPUs, and the sizes that they run at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dovetail import Value, library, ops
from dovetail.ir.dtype import DType, bf16, bool_, f16, f32, f64, i32
from dovetail.ir.leaf import input
from dovetail.library.rope import Form
from tests.targets.cuda.graphs import Case, x_of

_TURNED = (-1, -2)
FORMS: tuple[Form, ...] = ("half", "interleaved")


def _contractions(dtype: DType) -> dict[str, Value]:
    x, w, b, z = (
        x_of(dtype, 40, 72),
        x_of(dtype, 72, 48, name="w"),
        x_of(dtype, 48, name="b"),
        x_of(dtype, 40, 48, name="z"),
    )
    y, odd, other = x_of(dtype, 48, 72, name="y"), x_of(dtype, 9, 19, name="odd"), x_of(dtype, 19, 11, name="other")
    return {
        "plain": ops.matmul(x, w),
        "gelu": library.linear(x, w, b, act="gelu"),
        "added": library.matmul_add(x, w, z),
        "turned": ops.matmul(x, ops.permute(y, order=_TURNED)),
        "left": ops.matmul(ops.permute(w, order=_TURNED), ops.permute(x, order=_TURNED)),
        "odd": ops.matmul(odd, other),
    }


def _pairs(dtype: DType) -> dict[str, Value]:
    x, wide = x_of(dtype, 40, 72), x_of(dtype, 72, 64, name="wide")
    return {
        "swiglu": library.swiglu(x, x_of(dtype, 72, 32, name="gate"), x_of(dtype, 72, 32, name="up")),
        "wide": library.wide_swiglu(x, wide),
    }


def _batches(dtype: DType) -> dict[str, Value]:
    x, w = x_of(dtype, 3, 20, 24), x_of(dtype, 3, 24, 16, name="w")
    return {"own": ops.matmul(x, w), "shared": ops.matmul(x, x_of(dtype, 24, 16, name="one"))}


def _attention(
    dtype: DType,
    sizes: tuple[int | str, ...],
    *,
    heads: int = 2,
    groups: int | None = None,
    dv: int | None = None,
    **call: Any,
) -> Value:
    """sizes: batch, queries, keys, features."""
    batch, queries, keys, d = sizes
    shared = heads // (groups or 1)
    q, k = x_of(dtype, batch, heads, queries, d, name="q"), x_of(dtype, batch, shared, keys, d, name="k")
    v = x_of(dtype, batch, shared, keys, dv or d, name="v")
    if call.pop("mask", False):
        call["mask"] = x_of(dtype, batch, 1, queries, keys, name="mask")
    if call.pop("keep", False):
        call["keep"] = input("keep", bool_[batch, 1, queries, keys])
    return library.attention(q, k, v, scale=0.2, groups=groups, **call)


def _attentions() -> Mapping[str, Value]:
    wide = (1, 20, 70, 32)
    return {
        "plain": _attention(f16, wide),
        "bf16": _attention(bf16, (1, 70, 130, 64), heads=1),
        "mask": _attention(f16, (2, 20, 70, 32), mask=True),
        "keep": _attention(f16, wide, keep=True, fill=-math.inf),
        "keep_finite": _attention(f16, wide, keep=True, fill=-1e4),
        "keep_first": _attention(f16, wide, keep=True, mask=True, fill=-100.0, filled="first"),
        "causal": _attention(f16, (1, 100, 100, 32), causal=True, fill=-math.inf),
        "window": _attention(f16, (1, 100, 100, 32), causal=True, window=9, fill=-1e4),
        "added": _attention(f16, (1, 100, 100, 32), causal=True, fill=-1e4, filled="added"),
        "groups": _attention(f16, wide, heads=4, groups=2),
        "softcap": _attention(f16, wide, softcap=3.0),
        "odd": _attention(f16, (1, 20, 70, 20), dv=36),
        "features_96": _attention(f16, (1, 20, 70, 96), heads=1),
        "one_query": _attention(f16, (1, 1, 70, 32)),
        "one_query_long": _attention(f16, (1, 1, 300, 64), heads=1),
        "few_queries_masked": _attention(f16, (1, 20, 300, 40), heads=1, mask=True, dv=20),
        "few_queries_unseen": _attention(f16, (1, 20, 300, 32), keep=True, fill=-math.inf, zero_unseen=True),
        "one_query_groups": _attention(bf16, (1, 1, 300, 32), heads=4, groups=2, keep=True, fill=-math.inf),
        "few_queries_long": _attention(f16, (1, 3, 330, 40), heads=1, dv=20, mask=True),
        "many_heads": _attention(f16, (2, 40, 16, 16), heads=70),
        "unseen": _attention(f16, wide, keep=True, fill=-math.inf, zero_unseen=True),
    }


def _rotated(form: Form) -> Value:
    q, k, v = (x_of(f16, 1, 2, 20, 32, name=n) for n in "qkv")
    cos, sin = x_of(f16, 20, 32, name="cos"), x_of(f16, 20, 32, name="sin")
    return library.rope_attention(q, k, v, cos, sin, scale=0.2, form=form)


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for dtype in (f16, bf16):
        found[f"contractions_{dtype.name}"] = Case(_contractions(dtype), scale=4.0)
        found[f"pairs_{dtype.name}"] = Case(_pairs(dtype), scale=8.0)
    found["batches_f16"] = Case(_batches(f16), scale=4.0)
    found["contractions_f32"] = Case({k: v for k, v in _contractions(f32).items() if k in ("gelu", "odd")})
    found["pairs_f32"] = Case({"swiglu": _pairs(f32)["swiglu"]})
    for dtype in (f64, i32):
        found[f"products_{dtype.name}"] = Case({"y": ops.matmul(x_of(dtype, 9, 19), x_of(dtype, 19, 11, name="w"))})
    found["contraction_any"] = Case(
        {"y": library.linear(x_of(f16, "n", 72), x_of(f16, 72, 48, name="w"), x_of(f16, 48, name="b"))},
        ({"n": 1}, {"n": 37}, {"n": 70}),
        scale=4.0,
    )
    found["attention_any"] = Case(
        {"y": _attention(f16, (1, "n", "m", 32))}, ({"n": 3, "m": 70}, {"n": 70, "m": 3}, {"n": 2, "m": 0}), scale=4.0
    )
    found["attention_any_keys"] = Case(
        {"y": _attention(f16, (1, 1, "m", 32), heads=4, groups=4, keep=True, fill=-math.inf, zero_unseen=True)},
        ({"m": 0}, {"m": 70}, {"m": 1100}),
        scale=4.0,
    )
    found |= {f"attention_{name}": Case({"y": value}, scale=4.0) for name, value in _attentions().items()}
    found |= {f"rotated_{form}": Case({"y": _rotated(form)}, scale=8.0) for form in FORMS}
    return found


PRODUCTS = cases()

__all__ = ["PRODUCTS"]
