"""Weights of GGUF blocks as `MatMulNBits` holds them: integers without a sign, scales in f32, zero points."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.ir.literal import Array


class NBits(NamedTuple):
    """A matrix [n, k] in the format of `MatMulNBits`."""

    bits: int
    block: int
    codes: Array
    """[n, blocks, bytes], where a byte of 4 bits holds its lower code first."""
    scales: Array
    """[n, blocks]."""
    zeros: Array | None
    """Zero points, if not 2**(bits - 1)."""

    def floats(self) -> Array:
        """The matrix in f32."""
        codes = self.codes if self.bits == 8 else _parts(self.codes)
        zeros = np.uint8(1 << (self.bits - 1)) if self.zeros is None else _parts(self.zeros)[..., None]
        found = (codes.astype(np.float32) - zeros) * self.scales[..., None]
        return found.reshape(len(codes), -1)


def n_bits(blocks: Array, kind: str) -> NBits | None:
    """The same matrix; None where the format of its blocks has no equal.

    Q8_0, Q4_0 and Q6_K keep every bit of every weight. Lows of Q4_K become zero points, which are integers: these
    weights are rounded, but take the time that they would.
    """
    makers = {"q8_0": _q8_0, "q4_0": _q4_0, "q4_k": _q4_k, "q6_k": _q6_k}
    return makers[kind](blocks) if kind in makers else None


def _parted(blocks: Array, size: int) -> Array:
    return blocks.reshape(len(blocks), -1, size)


def _half(raw: Array) -> Array:
    """The f16 of two bytes as f32."""
    return np.ascontiguousarray(raw).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(raw: Array) -> Array:
    """Codes whose lower halves come first, in the order of elements."""
    return np.concatenate([raw & 15, raw >> 4], -1)


def _parts(pairs: Array) -> Array:
    """The two codes of each byte."""
    return np.stack([pairs & 15, pairs >> 4], -1).reshape(*pairs.shape[:-1], -1)


def _paired(codes: Array) -> Array:
    """Two neighbours of 4 bits to a byte."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def _q8_0(blocks: Array) -> NBits:
    found = _parted(blocks, 34)
    return NBits(8, 32, found[..., 2:] ^ np.uint8(128), _half(found[..., :2]), None)


def _q4_0(blocks: Array) -> NBits:
    found = _parted(blocks, 18)
    return NBits(4, 32, _paired(_nibbles(found[..., 2:])), _half(found[..., :2]), None)


def _q4_k(blocks: Array) -> NBits:
    found = _parted(blocks, 144)
    packed = found[..., 4:16]
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], -1)
    lows = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], -1)
    scale = (_half(found[..., :2])[..., None] * scales).reshape(len(found), -1)
    low = (_half(found[..., 2:4])[..., None] * lows).reshape(len(found), -1)
    codes = _nibbles(found[..., 16:].reshape(*found.shape[:2], 4, 32)).reshape(len(found), -1, 32)
    zeros = np.clip(np.rint(low / np.where(scale == 0, 1, scale)), 0, 15).astype(np.uint8)
    return NBits(4, 32, _paired(codes), scale, _paired(zeros))


def _q6_k(blocks: Array) -> NBits:
    found = _parted(blocks, 210)
    low = found[..., :128].reshape(*found.shape[:2], 2, 64)
    high = found[..., 128:192].reshape(*found.shape[:2], 2, 32)
    parts = [(low[..., :32] & 15, 0), (low[..., 32:] & 15, 2), (low[..., :32] >> 4, 4), (low[..., 32:] >> 4, 6)]
    codes = np.stack([part | (high >> at & 3) << 4 for part, at in parts], -2) + np.uint8(128 - 32)
    scales = _half(found[..., 208:])[..., None] * found[..., 192:208].view(np.int8)
    return NBits(8, 16, codes.reshape(len(found), -1, 16), scales.reshape(len(found), -1), None)


__all__ = ["NBits", "n_bits"]
