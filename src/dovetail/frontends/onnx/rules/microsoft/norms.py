"""Norms with the additions in front of them. Some of them stand in the domain of ONNX itself."""

from __future__ import annotations

from dovetail import library, ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.onnx.rules import normalisation
from dovetail.frontends.onnx.rules.microsoft.activations import MICROSOFT
from dovetail.frontends.shared.dtypes import cast, computed_in_f32
from dovetail.frontends.shared.norms import affine, over_last
from dovetail.frontends.shared.rule import Made
from dovetail.ir.dtype import DType, f32, f64, i32
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.primitive import axis_from_end

_TINY = 9.999999960041972e-13
"""1e-12 as f32 has it."""


def _only_the_sum(n: Node) -> None:
    if n.makes(1) or n.makes(2):
        raise n.unsupported("the mean or the deviation as an output", hint="they are for training")


@rule("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(
    n: Node,
    x: Value,
    skip: Value,
    gamma: Value,
    beta: Value | None = None,
    bias: Value | None = None,
    *,
    epsilon: float = _TINY,
) -> Made:
    """layer_norm(x + skip + bias), and the sum."""
    _only_the_sum(n)
    total = _sum(x, skip, bias)
    gain, shift = cast(gamma, total.dtype), None if beta is None else cast(beta, total.dtype)
    y = library.layer_norm.body(total, gain, shift, eps=epsilon)
    return cast(y, x.dtype), None, None, cast(total, x.dtype)


@rule("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(
    n: Node, x: Value, skip: Value, gamma: Value, bias: Value | None = None, *, epsilon: float = _TINY
) -> Made:
    """rms_norm(x + skip + bias), and the sum."""
    _only_the_sum(n)
    total = _sum(x, skip, bias)
    y = library.rms_norm.body(total, cast(gamma, total.dtype), eps=epsilon)
    return cast(y, x.dtype), None, None, cast(total, x.dtype)


def _sum(x: Value, skip: Value, bias: Value | None) -> Value:
    wide = computed_in_f32(x)
    total = wide if bias is None else wide + cast(bias, wide.dtype)
    return total + cast(skip, wide.dtype)


def _simplified_layer_normalization(
    n: Node, x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: DType = f32
) -> Made:
    """All axes from `axis` on divided by their root mean square, scaled, and the inverse of that."""
    wide = x if x.dtype is f64 else cast(x, stash_type)
    count = -axis_from_end(axis, x.rank)
    y = over_last(wide, count, lambda flat: library.rms_norm.body(flat, eps=epsilon))
    y = cast(affine(y, scale, None), scale.dtype)
    if not n.makes(1):
        return y
    axes = tuple(range(-count, 0))
    return y, ops.rsqrt(ops.reduce_mean(wide * wide, axes=axes) + epsilon)


SIMPLIFIED_LAYER_NORMALIZATION = rule("SimplifiedLayerNormalization")(_simplified_layer_normalization)
SIMPLIFIED_OF_MICROSOFT = rule("SimplifiedLayerNormalization", domain=MICROSOFT)(_simplified_layer_normalization)
# Before opset 17 it was an operator of onnxruntime in the domain of ONNX.
EARLY_LAYER_NORMALIZATION = rule("LayerNormalization", until=16)(normalisation.layer_normalization[0].function)


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(
    n: Node,
    input_ids: Value,
    segment_ids: Value | None,
    word_embedding: Value,
    position_embedding: Value,
    segment_embedding: Value | None,
    gamma: Value,
    beta: Value,
    mask: Value | None = None,
    position_ids: Value | None = None,
    *,
    epsilon: float = _TINY,
    mask_index_type: int = 0,  # says whether the second output is there, which its name says as well
) -> Made:
    """layer_norm of the embeddings of words, positions and segments, how many words count, and the sum."""
    if position_ids is None:
        positions = ops.gather(position_embedding, ops.iota(size=input_ids.shape[1]), axis=0)
    else:
        positions = ops.gather(position_embedding, position_ids, axis=0)
    total = ops.gather(word_embedding, input_ids, axis=0) + positions
    if segment_ids is not None and segment_embedding is not None:
        total = total + ops.gather(segment_embedding, segment_ids, axis=0)
    wide = computed_in_f32(total)
    y = library.layer_norm.body(wide, cast(gamma, wide.dtype), cast(beta, wide.dtype), eps=epsilon)
    if mask is None:
        counted = build.zeros((input_ids.shape[0],), i32)
    else:
        counted = ops.squeeze(ops.reduce_sum(ops.cast(ops.equal(mask, 1), dtype=i32), axes=(-1,)), axes=(-1,))
    return cast(y, word_embedding.dtype), counted, total


@rule("GroupNorm", domain=MICROSOFT)
def group_norm(
    n: Node,
    x: Value,
    gamma: Value,
    beta: Value,
    *,
    activation: int,
    channels_last: bool = True,
    epsilon: float = 9.999999747378752e-06,
    groups: int,
) -> Value:
    """Groups of channels brought to mean 0 and variance 1, scaled and shifted, with an optional silu after it."""
    return _grouped(n, x, gamma, beta, activation, channels_last, epsilon, groups)


@rule("SkipGroupNorm", domain=MICROSOFT)
def skip_group_norm(
    n: Node,
    x: Value,
    gamma: Value,
    beta: Value,
    skip: Value,
    bias: Value | None = None,
    *,
    activation: int,
    channels_last: bool = True,
    epsilon: float = 9.999999747378752e-06,
    groups: int,
) -> Made:
    """GroupNorm of x + skip + bias, and the sum."""
    if not channels_last and (skip.rank == 2 or bias is not None):
        raise n.unsupported("sums with channels in front", hint="export it with channels_last")
    beside = ops.unsqueeze(skip, axes=(-3, -2)) if skip.rank == 2 else skip
    total = x + beside if bias is None else x + beside + bias
    return _grouped(n, total, gamma, beta, activation, channels_last, epsilon, groups), total


def _grouped(
    n: Node,
    x: Value,
    gamma: Value,
    beta: Value,
    activation: int,
    channels_last: bool,
    epsilon: float,
    groups: int,
) -> Value:
    if x.rank != 4 or activation not in (0, 1):
        raise n.malformed(f"activation {activation} of {x.type}")
    image = ops.permute(x, order=(-1, -3, -2)) if channels_last else x
    wide = computed_in_f32(image)
    gain, shift = (ops.unsqueeze(cast(v, wide.dtype), axes=(-2, -1)) for v in (gamma, beta))
    y = library.group_norm.body(wide, gain, shift, groups=groups, eps=epsilon)
    y = cast(library.silu.body(y) if activation else y, x.dtype)
    return ops.permute(y, order=(-2, -1, -3)) if channels_last else y
