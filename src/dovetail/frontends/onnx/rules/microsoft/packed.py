"""Weights of a few bits each, several to a byte, with a scale for every block of them."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import collected, rule
from dovetail.frontends.onnx.rules.microsoft.activations import MICROSOFT
from dovetail.frontends.shared.quantisation import dequantised
from dovetail.ir.dim import Size
from dovetail.ir.dtype import u8
from dovetail.ir.value import Value
from dovetail.ops import build


def unpacked(x: Value, bits: int) -> Value:
    """The numbers in bytes of the last axis, the lowest bits first."""
    if bits == 8:
        return x
    shifted = [x if at == 0 else ops.shift_right(x, at) for at in range(0, 8, bits)]
    # Nothing stands above the highest bits of a byte.
    kept = [ops.bit_and(s, 2**bits - 1) for s in shifted[:-1]] + shifted[-1:]
    return ops.merge(build.stack(kept, axis=-1), axis=-1)


def _check(n: Node, bits: int) -> None:
    if bits not in (2, 4, 8):
        raise n.unsupported(f"{bits} bits", hint="use 2, 4 or 8")


def _cut(x: Value, length: Size) -> Value:
    """The first numbers of the last axis; the last byte or block may hold more than there are."""
    return x if x.shape[-1] == length else build.slice_axis(x, axis=-1, start=0, stop=length)


@rule("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(
    n: Node,
    a: Value,
    b: Value,
    scales: Value,
    zero_points: Value | None = None,
    g_idx: Value | None = None,
    bias: Value | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,  # how far a kernel may round a; we do not round it
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Value:
    """a @ wᵀ + bias, where w is unpacked from blocks of a few bits."""
    if weight_prepacked:
        raise n.unsupported("weights packed for one device", hint="export the model without weight_prepacked")
    _check(n, bits)
    if block_size < 1 or K < 1 or N < 1:
        raise n.malformed(f"{N} rows of {K} in blocks of {block_size}")
    blocks = -(-K // block_size)
    packed = build.reshape(b, (N, blocks, block_size * bits // 8))
    steps = ops.cast(unpacked(packed, bits), dtype=a.dtype)
    scale = build.reshape(scales, (N, blocks))
    zero = _zero_points(n, zero_points, a, N, blocks, bits)
    if g_idx is None:
        beside = None if zero is None else ops.unsqueeze(zero, axes=(-1,))
        w = _cut(ops.merge(_above(steps, beside, bits) * ops.unsqueeze(scale, axes=(-1,)), axis=-1), K)
    else:
        if zero_points is not None and zero_points.dtype is u8:
            raise n.unsupported("g_idx with packed zero points", hint="give the zero points as floats")
        # Each column says which scale is its own.
        group = _cut(g_idx, K)
        beside = None if zero is None else ops.gather(zero, group, axis=-1)
        w = _above(_cut(ops.merge(steps, axis=-1), K), beside, bits) * ops.gather(scale, group, axis=-1)
    y = a @ ops.permute(w, order=(-1, -2))
    return y if bias is None else y + bias


def _above(steps: Value, zero: Value | None, bits: int) -> Value:
    return steps - (float(2 ** (bits - 1)) if zero is None else zero)


def _zero_points(n: Node, zero_points: Value | None, a: Value, rows: int, blocks: int, bits: int) -> Value | None:
    """One for each block: a number of the type of a, or packed like the weights."""
    if zero_points is None:
        return None
    if zero_points.dtype is not u8:
        found = build.reshape(zero_points, (rows, blocks))
        return found if found.dtype is a.dtype else ops.cast(found, dtype=a.dtype)
    packed = build.reshape(zero_points, (rows, -(-blocks * bits // 8)))
    return ops.cast(_cut(unpacked(packed, bits), blocks), dtype=a.dtype)


@rule("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(
    n: Node,
    x: Value,
    indices: Value,
    scales: Value,
    zero_points: Value | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Value:
    """Slices of a tensor that is quantised in blocks, one for each index, as floats."""
    _check(n, bits)
    if x.dtype.is_float:
        raise n.unsupported(f"weights of {x.dtype.name}", hint="quantise to whole numbers")
    if not (-x.rank <= gather_axis < x.rank and -x.rank <= quantize_axis < x.rank) or block_size < 1:
        raise n.malformed(f"axes {gather_axis} and {quantize_axis} of {x.type} in blocks of {block_size}")
    gathered, blocked = gather_axis % x.rank, quantize_axis % x.rank
    if x.dtype is u8 and bits < 8 and blocked != x.rank - 1:
        raise n.unsupported("packed numbers whose blocks lie along another axis", hint="use the last axis")
    parts = [p for p in (x, scales, zero_points) if p is not None]
    apart = gathered != blocked
    if apart:
        # Few slices are wanted of a large table: only these are unpacked.
        parts = [ops.gather(p, indices, axis=gathered) for p in parts]
        if gathered < blocked:
            blocked += indices.rank - 1
    q, scale, zero = parts[0], parts[1], parts[2] if zero_points is not None else None
    if x.dtype is u8:
        q = unpacked(q, bits)
        if zero is None:
            zero = build.full(scale.shape, 2 ** (bits - 1), u8)
        else:
            zero = _cut(unpacked(zero, bits), scale.shape[-1]) if bits < 8 else zero
    y = dequantised(n, q, scale, zero, scales.dtype, axis=blocked, block=block_size)
    return y if apart else ops.gather(y, indices, axis=gathered)


RULES = collected(globals())
