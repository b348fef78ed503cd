"""Functions of JAX to import: one for each thing that users write, and compositions that are drawn."""
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# Arrays of JAX have no types here.

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True, slots=True)
class Case:
    """A function and what it is called with."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _f(*shape: int) -> Any:
    return _rng(sum(shape) + len(shape)).standard_normal(shape).astype(np.float32)


def _u(*shape: int) -> Any:
    return _rng(sum(shape)).uniform(0.1, 0.9, shape).astype(np.float32)


def _i(*shape: int, most: int = 5) -> Any:
    return _rng(sum(shape)).integers(0, most, shape).astype(np.int32)


def _ints(*shape: int) -> Any:
    return _rng(sum(shape)).integers(-9, 9, shape).astype(np.int32)


def _words(text: str) -> list[str]:
    return text.split()


_UNARY = _words(
    "abs ceil cos exp expm1 floor log1p negative rint sign sin sqrt square tan tanh sinh cosh cbrt arctan arcsinh"
)
_OPEN = _words("arcsin arccos arctanh log reciprocal")
_NN = _words("relu sigmoid silu softplus gelu elu selu celu leaky_relu log_sigmoid softmax log_softmax hard_swish")
_BINARY = _words("add subtract multiply divide maximum minimum power arctan2 remainder mod hypot logaddexp")
_INTEGERS = _words("add subtract multiply floor_divide remainder bitwise_and bitwise_or bitwise_xor maximum minimum")
_COMPARED = _words("equal not_equal less less_equal greater greater_equal")
_REDUCED = _words("sum mean prod max min any all var std argmax argmin ptp")


def _along(name: str) -> Callable[[Any], Any]:
    return lambda x: getattr(jnp, name)(x, axis=1)


def _layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * scale + bias


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(mask, scores, -1e9), -1), v)


def _loop(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, c: c * 0.5 + i, x)


def _until(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0].sum() < 100, lambda c: (c[0] * 2 + 1, c[1] + 1), (jnp.abs(x), 0))


def _scan(c: Any, xs: Any) -> Any:
    return lax.scan(lambda s, x: (s * 0.5 + x, jnp.tanh(s)), c, xs)


def _loss(params: Mapping[str, Any], x: Any, y: Any) -> Any:
    h = jnp.tanh(x @ params["w"] + params["b"])
    logits = h @ params["v"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()


_MODEL = {"w": _f(6, 5), "b": _f(5), "v": _f(5, 4)}


def _conv(**options: Any) -> Callable[..., Any]:
    return lambda x, w: lax.conv_general_dilated(x, w, **options)


_NHWC = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}

CASES: dict[str, Case] = {
    **{name: Case(getattr(jnp, name), (_u(2, 5) if name == "sqrt" else _f(2, 5),)) for name in _UNARY},
    **{name: Case(getattr(jnp, name), (_u(2, 5),)) for name in _OPEN},
    **{f"nn.{name}": Case(getattr(jax.nn, name), (_f(3, 5),)) for name in _NN},
    **{f"{name}": Case(getattr(jnp, name), (_u(2, 5), _u(5))) for name in _BINARY},
    **{f"{name}_i32": Case(getattr(jnp, name), (_ints(2, 5), _i(5) + 1)) for name in _INTEGERS},
    **{name: Case(getattr(jnp, name), (_i(2, 5), _i(5))) for name in _COMPARED},
    **{name: Case(_along(name), (_f(3, 4, 2),)) for name in _REDUCED},
    "argmax_i32": Case(lambda x: jnp.argmax(x, 0), (_ints(5, 3),)),
    "sum_of_all": Case(jnp.sum, (_f(3, 4),)),
    "gelu_exact": Case(lambda x: jax.nn.gelu(x, approximate=False), (_f(3, 5),)),
    "erf": Case(lambda x: jax.scipy.special.erf(x) + jax.scipy.special.erfc(x * 3), (_f(9),)),
    "logsumexp": Case(jax.nn.logsumexp, (_f(3, 5),)),
    "one_hot": Case(lambda x: jax.nn.one_hot(x, 5), (_i(3),)),
    "shifts": Case(lambda x, y: (x << y, x >> y, lax.shift_right_logical(x, y)), (_ints(6), _i(6))),
    "isfinite": Case(lambda x: jnp.isfinite(x / jnp.floor(x * x)), (_f(7),)),
    "round_away": Case(lambda x: lax.round(x), (np.array([0.5, -0.5, 1.5, 2.4, 0.49999997], np.float32),)),
    "clip": Case(lambda x: jnp.clip(x, -0.5, 0.5), (_f(3, 5),)),
    "where": Case(lambda c, x, y: jnp.where(c > 2, x, y), (_i(3, 5), _f(3, 5), _f(5))),
    "casts": Case(lambda x: (x.astype(jnp.int32), (x > 0).astype(jnp.float32), x.astype(jnp.bfloat16) * 2), (_f(6),)),
    "bits": Case(lambda x: lax.bitcast_convert_type(x, jnp.int32) & 0xFFFF, (_f(4),)),
    "complex": Case(lambda x, y: (lax.complex(x, y) * lax.complex(y, x)).real, (_f(4), _f(4))),
    "matmul": Case(jnp.matmul, (_f(3, 4), _f(4, 5))),
    "matmul_batch": Case(jnp.matmul, (_f(2, 3, 4), _f(2, 4, 5))),
    "matmul_weight": Case(jnp.matmul, (_f(2, 3, 4), _f(4, 5))),
    "matvec": Case(jnp.matmul, (_f(3, 4), _f(4))),
    "inner": Case(jnp.dot, (_f(4), _f(4))),
    "einsum": Case(lambda x, y: jnp.einsum("bij,kjb->ikb", x, y), (_f(2, 3, 4), _f(5, 4, 2))),
    "outer": Case(jnp.outer, (_f(3), _f(4))),
    "tensordot": Case(lambda x, y: jnp.tensordot(x, y, 2), (_f(2, 3, 4), _f(3, 4, 5))),
    "matmul_bf16": Case(
        lambda x, y: jnp.matmul(x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), preferred_element_type=jnp.float32),
        (_f(3, 4), _f(4, 5)),
    ),
    "conv": Case(_conv(window_strides=(1, 1), padding="SAME"), (_f(2, 3, 6, 6), _f(4, 3, 3, 3))),
    "conv_nhwc": Case(_conv(window_strides=(2, 2), padding="VALID", **_NHWC), (_f(1, 7, 7, 3), _f(3, 3, 3, 4))),
    "conv_groups": Case(
        _conv(window_strides=(1, 1), padding="SAME", feature_group_count=3), (_f(1, 3, 5, 5), _f(6, 1, 3, 3))
    ),
    "conv_dilated": Case(
        _conv(window_strides=(1, 1), padding=[(2, 1), (0, 3)], rhs_dilation=(2, 1)), (_f(1, 2, 7, 7), _f(3, 2, 3, 3))
    ),
    "conv_transpose": Case(lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), (_f(1, 4, 4, 2), _f(3, 3, 2, 3))),
    "conv_1d": Case(lambda x, w: jnp.convolve(x, w, mode="same"), (_f(9), _f(3))),
    "conv_gradient": Case(
        jax.grad(lambda w, x: (_conv(window_strides=(2, 2), padding="SAME")(x, w) ** 2).sum()),
        (_f(4, 3, 3, 3), _f(2, 3, 6, 6)),
    ),
    "max_pool": Case(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), (_f(1, 6, 6, 2),)
    ),
    "sum_pool": Case(
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"), (_f(1, 6, 6, 2),)
    ),
    "cumsum": Case(lambda x: (jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x, 0, reverse=True)), (_f(4, 5),)),
    "transpose": Case(lambda x: (x.T, jnp.swapaxes(x, 0, 1), jnp.moveaxis(x, 0, -1)), (_f(2, 3, 4),)),
    "reshape": Case(lambda x: x.reshape(4, 6)[:, None].squeeze(1).ravel(), (_f(2, 3, 4),)),
    "broadcast": Case(lambda x: jnp.broadcast_to(x[:, None], (3, 2, 4)), (_f(3, 4),)),
    "concatenate": Case(lambda x, y: jnp.concatenate([x, y, x], 1), (_f(2, 3), _f(2, 4))),
    "stack": Case(lambda x, y: jnp.stack([x, y], 1), (_f(2, 3), _f(2, 3))),
    "split": Case(lambda x: jnp.split(x, 3, axis=1), (_f(2, 6),)),
    "slices": Case(lambda x: (x[1:3, ::2], x[::-1], x[-1], x[..., 1]), (_f(4, 5),)),
    "pad": Case(lambda x: (jnp.pad(x, ((1, 2), (0, 1)), constant_values=3.0), jnp.pad(x, 1, mode="edge")), (_f(2, 3),)),
    "pad_inside": Case(lambda x: lax.pad(x, 7.0, ((1, -1, 2), (-1, 2, 0))), (_f(3, 4),)),
    "tile": Case(lambda x: (jnp.tile(x, (2, 3)), jnp.repeat(x, 2, 0)), (_f(2, 3),)),
    "roll": Case(lambda x: jnp.roll(x, 2, 1), (_f(2, 5),)),
    "triangle": Case(lambda x: (jnp.tril(x), jnp.triu(x, 1), jnp.diag(x)), (_f(4, 4),)),
    "iota": Case(
        lambda x: x + jnp.arange(5, dtype=jnp.float32) + lax.broadcasted_iota(jnp.int32, (3, 5), 0), (_f(3, 5),)
    ),
    "eye": Case(lambda x: x @ jnp.eye(4, 5) + jnp.linspace(0, 1, 5), (_f(3, 4),)),
    "take": Case(lambda x, i: jnp.take(x, i, axis=0), (_f(6, 4), _i(3, 2))),
    "take_middle": Case(lambda x, i: jnp.take(x, i, axis=1), (_f(3, 6, 2), _i(2, 2))),
    "take_clip": Case(lambda x, i: jnp.take(x, i, axis=0, mode="clip"), (_f(3, 2), _ints(5))),
    "take_along": Case(lambda x, i: jnp.take_along_axis(x, i, 1), (_f(3, 6), _i(3, 2))),
    "index": Case(lambda x, i: (x[i], x[i, 1], x[:, i]), (_f(6, 6), _i(3))),
    "index_two": Case(lambda x, i, j: x[i, :, j], (_f(5, 3, 5), _i(4), _i(4))),
    "dynamic_slice": Case(lambda x, i: lax.dynamic_slice(x, (i[0], i[1]), (2, 3)), (_f(5, 6), _i(2, most=9))),
    "dynamic_update": Case(
        lambda x, y, i: lax.dynamic_update_slice(x, y, (i[0], i[1])), (_f(5, 6), _f(2, 3), _i(2, most=9))
    ),
    "at_set": Case(lambda x, i: x.at[i].set(7.0), (_f(6, 2), np.array([1, 3, 9, -1], np.int32))),
    "at_add": Case(lambda x, i, y: x.at[i].add(y), (_f(6, 2), _i(4), _f(4, 2))),
    "at_max": Case(lambda x, i, j, y: x.at[i, j].max(y), (_f(6, 5), _i(4), _i(4), _f(4))),
    "at_multiply": Case(lambda x: x.at[1:3].multiply(2.0), (_f(6, 2),)),
    "segment_sum": Case(lambda x, i: jax.ops.segment_sum(x, i, 5), (_f(7, 2), _i(7))),
    "bincount": Case(lambda i: jnp.bincount(i, length=5), (_i(9),)),
    "sort": Case(lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1), -jnp.sort(-x, 1)), (_f(4, 5),)),
    "sort_pairs": Case(lambda k, v: lax.sort((k, v), num_keys=1), (_f(6), _f(6))),
    "median": Case(lambda x: (jnp.median(x, 1), jnp.quantile(x, 0.3, 1)), (_f(3, 5),)),
    "top_k": Case(lambda x: lax.top_k(x, 3), (_f(2, 6),)),
    "searchsorted": Case(jnp.searchsorted, (np.sort(_f(6)), _f(4))),
    "fori": Case(_loop, (_f(3),)),
    "while": Case(_until, (_f(3),)),
    "scan": Case(_scan, (_f(3), _f(5, 3))),
    "cond": Case(lambda x, y: lax.cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: a * b, x, y), (_f(3), _f(3))),
    "switch": Case(
        lambda i, x: lax.switch(i[0], [lambda a: a + 1, lambda a: a * 2, lambda a: jnp.sin(a) @ x], x[0]),
        (_i(1), _f(1, 1)),
    ),
    "map": Case(lambda x: lax.map(lambda r: jnp.sort(r) * 2, x), (_f(3, 4),)),
    "vmap": Case(jax.vmap(lambda x, y: jnp.tanh(x @ y)), (_f(3, 2, 4), _f(3, 4, 2))),
    "layer_norm": Case(_layer_norm, (_f(3, 8), _f(8), _f(8))),
    "attention": Case(_attention, (_f(2, 4, 2, 3), _f(2, 4, 2, 3), _f(2, 4, 2, 3))),
    "nn_attention": Case(
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
        (_f(2, 4, 2, 3), _f(2, 4, 2, 3), _f(2, 4, 2, 3)),
    ),
    "loss": Case(_loss, (_MODEL, _f(3, 6), _i(3, most=4))),
    "gradient": Case(jax.value_and_grad(_loss), (_MODEL, _f(3, 6), _i(3, most=4))),
    "checkpoint": Case(jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.exp(x)).sum())), (_f(4),)),
    "nested_jit": Case(lambda x: jax.jit(jnp.tanh)(x) + jax.jit(jnp.tanh)(x * 2), (_f(4),)),
    "random": Case(lambda s: jax.random.uniform(jax.random.key(s[0]), (3, 4)), (np.array([7], np.int32),)),
    "normal": Case(lambda s: jax.random.normal(jax.random.key(s[0]), (3,)), (np.array([7], np.int32),)),
    "fft": Case(lambda x: jnp.fft.fft(x).real, (_f(8),)),
    "cholesky": Case(lambda x: jnp.linalg.cholesky(x @ x.T + 4 * jnp.eye(3)), (_f(3, 3),)),
    "rfft2": Case(lambda x: jnp.fft.rfft2(x).imag, (_f(3, 4, 5),)),
    "ifftn": Case(lambda x: jnp.abs(jnp.fft.ifftn(lax.complex(x, x * 2))), (_f(3, 4),)),
    "irfft": Case(lambda x: jnp.fft.irfft2(lax.complex(x, x * 2), (4, 7)), (_f(2, 4, 4),)),
    "cholesky_upper": Case(lambda x: jax.scipy.linalg.cholesky(x @ x.T + 4 * jnp.eye(3), lower=False), (_f(3, 3),)),
    "solve": Case(jnp.linalg.solve, (_f(3, 3), _f(3, 2))),
    "triangular": Case(
        lambda a, b: jax.scipy.linalg.solve_triangular(a + 4 * jnp.eye(3), b, trans=1, unit_diagonal=True, lower=True),
        (_f(3, 3), _f(3, 2)),
    ),
    "lu": Case(lambda x: jax.scipy.linalg.lu(x), (_f(3, 3),)),
    "eigh": Case(lambda x: jnp.abs(jnp.linalg.eigh(x + x.T)[1]), (_f(3, 3),)),
    "qr": Case(lambda x: jnp.linalg.qr(x), (_f(3, 3),)),
    "svd": Case(lambda x: jnp.linalg.svd(x), (_f(3, 3),)),
    "max_pool_gradient_same": Case(
        jax.grad(lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 1, 1), "SAME") ** 2).sum()),
        (np.round(_f(2, 5, 4, 3)),),
    ),
    "min_pool_gradient": Case(
        jax.grad(lambda x: (lax.reduce_window(x, jnp.inf, lax.min, (3, 2), (2, 2), "VALID") ** 2).sum()), (_f(7, 4),)
    ),
    "max_pool_gradient": Case(
        jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID").sum()), (_f(4, 4),)
    ),
    "lexsort": Case(lambda x, y: jnp.lexsort((x, y)), (_i(6), _i(6))),
    "lgamma": Case(lambda x: jax.scipy.special.gammaln(x), (_u(4),)),
    "popcount": Case(lambda x: lax.population_count(x), (_i(4),)),
    "callback": Case(lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((4,), np.float32), x), (_f(4),)),
}
"""By name."""


def drawn(seed: int) -> Case:
    """A composition of a few steps that is drawn."""
    r = random.Random(seed)
    steps = [r.choice(_STEPS) for _ in range(r.randint(3, 8))]

    def function(x: Any, y: Any, i: Any) -> Any:
        for step in steps:
            x = step(x, y, i)
        return x

    shape = (r.randint(2, 5), r.randint(2, 5))
    return Case(function, (_f(*shape), _f(*shape), _i(3, most=2)))


def _flat(x: Any) -> Any:
    """Two axes, whatever a step made."""
    return jnp.tanh(x.reshape(x.shape[0] if x.ndim else 1, -1).astype(jnp.float32))


_STEPS: tuple[Callable[[Any, Any, Any], Any], ...] = (
    lambda x, y, i: x * 0.5 + x.mean(),
    lambda x, y, i: jnp.concatenate([x, x[:, ::-1]], 1)[:, :7],
    lambda x, y, i: _flat(x.T),
    lambda x, y, i: jax.nn.softmax(x, -1) * jnp.sign(x),
    lambda x, y, i: jnp.cumsum(x, 0) * 0.3,
    lambda x, y, i: jnp.sort(x, 1),
    lambda x, y, i: jnp.take(x, i, axis=0),
    lambda x, y, i: x[:, jnp.minimum(i, x.shape[1] - 1)],
    lambda x, y, i: _flat(x @ x.T),
    lambda x, y, i: _flat(jnp.einsum("ab,cb->ac", x, x) + jnp.arange(x.shape[0])),
    lambda x, y, i: jnp.pad(x, ((0, 1), (1, 0)), constant_values=0.25)[:6, :6],
    lambda x, y, i: x.at[i % x.shape[0]].add(0.5),
    lambda x, y, i: jnp.where(x > x.mean(1, keepdims=True), x, -x * y.sum() * 0.1),
    lambda x, y, i: lax.dynamic_slice_in_dim(x, i[0], max(1, x.shape[0] - 1), 0),
    lambda x, y, i: lax.fori_loop(0, 3, lambda k, c: jnp.sin(c) + 0.1 * k, x),
    lambda x, y, i: lax.scan(lambda c, row: (c * 0.5 + row, c), x[0], x)[1],
    lambda x, y, i: lax.cond(x.sum() > 0, lambda a: a + 1, lambda a: a * 0.5, x),
    lambda x, y, i: _layer_norm(x, 1.5, 0.1),
    lambda x, y, i: jnp.repeat(x, 2, 1)[:, :6],
    lambda x, y, i: jax.grad(lambda a: (jnp.tanh(a) * a).sum())(x),
    lambda x, y, i: _flat(x.max(0, keepdims=True) - x),
    lambda x, y, i: jnp.argmax(x, 1)[:, None] * 0.1 + x,
    lambda x, y, i: jnp.tril(x @ x.T) / x.shape[1],
    lambda x, y, i: jnp.stack([x, jnp.abs(x)], 1).reshape(-1, x.shape[1])[:7],
    lambda x, y, i: lax.top_k(x, min(2, x.shape[1]))[0],
)

__all__ = ["CASES", "Case", "drawn"]
