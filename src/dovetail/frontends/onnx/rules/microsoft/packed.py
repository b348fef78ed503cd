"""Weights of a few bits each, several to a byte, with a scale for every block of them."""

from __future__ import annotations

import numpy as np

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.onnx.rules.microsoft.activations import MICROSOFT
from dovetail.frontends.shared.quantisation import dequantised
from dovetail.ir.dim import Size
from dovetail.ir.dtype import f32, u8
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.library.dequantise_blocks import dequantise_blocks
from dovetail.ops import build

GROUP = 32
"""Numbers of a block that products read without a copy in f32."""


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
    if g_idx is None and bits in (4, 8) and block_size % GROUP == 0 and K % block_size == 0:
        w = _blocks(n, b, scales, zero_points, (N, K, block_size), bits)
        if w is not None:
            x = a if a.dtype is f32 else ops.cast(a, dtype=f32)
            y = x @ ops.permute(w, order=(-1, -2))
            y = y if a.dtype is f32 else ops.cast(y, dtype=a.dtype)
            return y if bias is None else y + bias
    packed = build.reshape(b, (N, blocks, block_size * bits // 8))
    scale = build.reshape(scales, (N, blocks))
    zero = _zero_points(n, zero_points, a, N, blocks, bits)
    steps = ops.cast(unpacked(packed, bits), dtype=a.dtype)
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


def _blocks(
    n: Node, b: Value, scales: Value, zero: Value | None, sizes: tuple[int, int, int], bits: int
) -> Value | None:
    """Weights [rows, columns] as blocks that kernels of products read; None where not all are arrays of the file."""
    rows, columns, size = sizes
    found = [n.around.stored(v) for v in (b, scales, *([] if zero is None else [zero]))]
    arrays = [array for array in found if array is not None]
    if len(arrays) < len(found):
        return None
    codes = arrays[0].reshape(rows, columns // GROUP, GROUP * bits // 8)
    steps = arrays[1].reshape(rows, columns // size, 1).astype(np.float32)
    above = np.float32(2 ** (bits - 1)) if zero is None else _spelled(arrays[2], steps.shape[1], rows, bits)
    heads, name = [steps], "int4"
    if bits == 8 or zero is not None:
        heads.append(((128 if bits == 8 else 0) - above) * steps)
        name = "int8_low" if bits == 8 else "int4_low"
    parts = [np.repeat(head, size // GROUP, axis=1).view(np.uint8) for head in heads]
    blocks = np.concatenate([*parts, codes], axis=-1).reshape(rows, -1)
    stored = n.around.array_value(f"{n.name}.blocks", blocks)
    n.around.replaced(b, scales)
    return dequantise_blocks(stored, format=name)


def _spelled(zero: Array, blocks: int, rows: int, bits: int) -> Array:
    """Zero points [rows, blocks, 1] in f32."""
    if zero.dtype == np.uint8 and bits < 8:
        zero = np.stack([zero & 15, zero >> 4], axis=-1)
    return zero.reshape(rows, -1)[:, :blocks, None].astype(np.float32)


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
