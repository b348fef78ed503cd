"""Weights of products as blocks of 8 or 4 bits, chosen when a model is compiled: only weights are rounded.

A matrix becomes `dequantise_blocks` of its blocks, which kernels read as they are. A matrix whose error is too large
stays as it is, and a report has every matrix with its error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.derive.unfuse import unfuse
from dovetail.errors import CheckError, OptionError
from dovetail.ir import leaf
from dovetail.ir.dtype import f32, u8
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.rewrite import rebuild
from dovetail.ir.value import Value
from dovetail.library.block_formats import FORMATS, BlockFormat
from dovetail.library.dequantise_blocks import dequantise_blocks

QuantizeKind = Literal["int8", "int4"]
_FORMATS: Mapping[str, BlockFormat] = {"int8": "q8_0", "int4": "q4_1"}
_KEEP_ABOVE: Mapping[str, float] = {"int8": 0.02, "int4": 0.12}
GROUP = 32
_CUTS = (0.0, 0.05)
"""Parts of a group's range that a range of 4 bits leaves out at each end."""
_AT_ONCE = 1 << 20
"""Elements whose groups are searched at a time."""
LEAST = 4096
"""Elements of a matrix from which on it is quantized: smaller ones save nothing."""


@dataclass(frozen=True, slots=True)
class Quantize:
    """How weights are quantized: to 8 bits with a scale, or 4 bits with a scale and a lowest number, for each 32."""

    kind: QuantizeKind = "int8"
    keep_above: float | None = None
    """A matrix whose relative error is above this stays as it is; None for 0.02 (int8) or 0.12 (int4)."""
    fail_above: float | None = None
    """A matrix whose relative error is above this fails the compilation; None for no bound."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(QuantizeKind):
            raise OptionError(f"quantize={self.kind!r}", hint=f"it is one of {', '.join(get_args(QuantizeKind))}")
        for name in ("keep_above", "fail_above"):
            bound = getattr(self, name)
            if bound is not None and (not isinstance(bound, int | float) or isinstance(bound, bool) or not bound >= 0):
                raise OptionError(f"{name} is {bound!r}", hint="it is a relative error, 0 or more")


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """A matrix that a product reads: its error if quantized, and whether it is."""

    name: str
    shape: tuple[int, ...]
    before: int
    """Bytes as it came."""
    after: int
    """Bytes as it is read."""
    error: float
    """The norm of what quantizing changes, over the norm of the matrix, in float64."""
    kept: str
    """Why it stays as it is; empty where it is quantized."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """Every matrix that a product reads, and what became of it."""

    how: Quantize
    layers: tuple[QuantizedLayer, ...]

    def __str__(self) -> str:
        done = [layer for layer in self.layers if not layer.kept]
        before, after = (sum(getattr(layer, n) for layer in self.layers) for n in ("before", "after"))
        lines = [
            f"WEIGHTS {len(done)} of {len(self.layers)} as {self.how.kind}: {_size(after)}, before {_size(before)}"
        ]
        for layer in sorted(self.layers, key=lambda layer: -layer.error):
            what = f"stays: {layer.kept}" if layer.kept else f"{_size(layer.before)} -> {_size(layer.after)}"
            lines.append(f"  {layer.name} {list(layer.shape)}  error {layer.error:.2%}  {what}")
        return "\n".join(lines)


def quantized(graph: Graph, how: Quantize) -> tuple[Graph, Quantized]:
    """A graph whose products read blocks where their weights allow it, and a report of every matrix."""
    # Products inside declared ops are found as products; the compiler fuses them again.
    graph = unfuse(graph, keep=lambda value: value.op is dequantise_blocks)
    found = _matrices(graph)
    unknown = [name for name in found if name not in graph.params]
    if unknown:
        raise OptionError(
            f"quantize={how.kind!r} without the weights {', '.join(sorted(unknown)[:3])}"
            + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""),
            hint="pass them to compile with params=: what is quantized has to be known there",
        )
    arrays: dict[str, Array] = {}
    layers: list[QuantizedLayer] = []
    for name, is_transposed in found.items():
        array = np.asarray(graph.params[name])
        rows = array if is_transposed else array.T
        kept, blocks, error = _blocks(rows, how)
        if blocks is not None:
            arrays[name] = blocks
        after = array.nbytes if blocks is None else blocks.nbytes
        layers.append(QuantizedLayer(name, array.shape, array.nbytes, after, error, kept))
    over = [layer for layer in layers if how.fail_above is not None and not layer.error <= how.fail_above]
    if over:
        worst = max(over, key=lambda layer: layer.error)
        raise CheckError(
            f"{worst.name} has an error of {worst.error:.2%} as {how.kind}, and {len(over) - 1} more are above, too",
            hint="allow a larger error, or keep the weights as they are",
        )
    made = {name: leaf.param(_name(name), u8[array.shape]) for name, array in arrays.items()}

    def step(value: Value, operands: tuple[Value, ...]) -> Value | None:
        name = _weight(value)[0]
        if name not in made:
            return None
        floats = dequantise_blocks(made[name], format=_FORMATS[how.kind])
        return ops.matmul(operands[0], ops.permute(floats, order=(-1, -2)))

    new = rebuild(graph, step)
    left = {value.attrs["name"] for value in new.parameters}
    params = {name: array for name, array in graph.params.items() if name in left}
    params |= {_name(name): array for name, array in arrays.items()}
    declared = tuple([value for value in graph.declared if value.attrs["name"] not in arrays])
    new = replace(new, params=params, declared=(*declared, *made.values()), reread=None)
    return new, Quantized(how, tuple(layers))


def _name(name: str) -> str:
    return f"{name}.blocks"


def _matrices(graph: Graph) -> dict[str, bool]:
    """The matrices that only products read, by name, and whether they are stored [out, in]."""
    found: dict[str, bool] = {}
    for value in graph.values:
        name, is_transposed = _weight(value)
        if name:
            # One that products read both ways has no one order of blocks.
            found[name] = is_transposed if found.get(name, is_transposed) == is_transposed else False
    return found


def _weight(value: Value) -> tuple[str, bool]:
    """The parameter that is the right factor of a product, and whether it is transposed there."""
    if value.op is not ops.matmul:
        return "", False
    y = value.operands[1]
    is_transposed = y.op is ops.permute and y.rank == 2 and tuple(y.attrs["order"]) == (-1, -2)
    if is_transposed:
        y = y.operands[0]
    if y.op is not leaf.PARAM or y.rank != 2 or y.dtype is not f32:
        return "", False
    return y.attrs["name"], is_transposed


def _blocks(rows: Array, how: Quantize) -> tuple[str, Array | None, float]:
    """Why a matrix [out, in] stays as it is, or its blocks; and its error."""
    if rows.size < LEAST:
        return "it is small", None, 0.0
    if rows.shape[1] % GROUP:
        return f"{GROUP} does not divide {rows.shape[1]}", None, 0.0
    if not np.isfinite(rows).all():
        return "it is not finite", None, 0.0
    blocks, again = (_eight if how.kind == "int8" else _four)(np.ascontiguousarray(rows))
    wide = rows.astype(np.float64)
    norm = float(np.linalg.norm(wide))
    error = float(np.linalg.norm(again - wide)) / norm if norm else 0.0
    error = math.inf if math.isnan(error) else error
    bound = _KEEP_ABOVE[how.kind] if how.keep_above is None else how.keep_above
    if not error <= bound:
        return f"its error is above {bound:.2%}", None, error
    return "", blocks, error


def _eight(rows: Array) -> tuple[Array, Array]:
    """Blocks of 8 bits (q8_0), and the numbers that they stand for."""
    x = rows.reshape(len(rows), -1, GROUP)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = (np.abs(x).max(axis=-1, keepdims=True) / 127.0).astype(np.float16)
        wide = scale.astype(np.float32)
        codes = np.clip(np.rint(np.divide(x, wide, out=np.zeros_like(x), where=wide != 0)), -127, 127).astype(np.int8)
        raw = np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=-1)
        again = codes.astype(np.float64) * scale.astype(np.float64)
    return raw.reshape(len(rows), -1), again.reshape(rows.shape)


def _four(rows: Array) -> tuple[Array, Array]:
    """Blocks of 4 bits with a lowest number (q4_1), and the numbers that they stand for.

    Of several ranges that leave out a part of both ends, and the line through the codes of each by least squares, every
    group takes what changes it least: the largest numbers are few, and a smaller step is closer for all others.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [_four_of(some) for some in np.array_split(rows, -(-rows.size // _AT_ONCE))]
    raw, again = (np.concatenate(some) for some in zip(*parts, strict=True))
    return raw, again


def _four_of(rows: Array) -> tuple[Array, Array]:
    x = rows.reshape(len(rows), -1, GROUP)
    least, most = x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)
    best: list[Array] = []
    for cut in _CUTS:
        left_out = cut * (most - least)
        lines = [((most - least - 2 * left_out) / 15, least + left_out)]
        lines.append(_line(x, _codes_of(x, *lines[0])))
        for line in lines:
            scale, low = (number.astype(np.float16) for number in line)
            wide, lowest = scale.astype(np.float32), low.astype(np.float32)
            codes = _codes_of(x, wide, lowest)
            error = np.square(codes * wide + lowest - x).sum(axis=-1, keepdims=True)
            found = [error, codes, scale, low]
            if best:
                found = [np.where(error < best[0], new, old) for new, old in zip(found, best, strict=True)]
            best = found
    _, floats, scale, low = best
    codes = floats.astype(np.uint8)
    nibbles = codes[..., : GROUP // 2] | (codes[..., GROUP // 2 :] << 4)
    raw = np.concatenate([scale.view(np.uint8), low.view(np.uint8), nibbles], axis=-1)
    again = codes.astype(np.float64) * scale.astype(np.float64) + low.astype(np.float64)
    return raw.reshape(len(rows), -1), again.reshape(rows.shape)


def _codes_of(x: Array, scale: Array, low: Array) -> Array:
    """The codes from 0 to 15, as floats, that are closest."""
    steps = np.divide(x - low, scale, out=np.zeros_like(x), where=scale != 0)
    return np.clip(np.rint(steps), 0, 15)


def _line(x: Array, codes: Array) -> tuple[Array, Array]:
    """The scale and lowest number of each group that are closest for given codes."""
    middle, mean = codes.mean(axis=-1, keepdims=True), x.mean(axis=-1, keepdims=True)
    apart = codes - middle
    spread = np.square(apart).sum(axis=-1, keepdims=True)
    along = (apart * (x - mean)).sum(axis=-1, keepdims=True)
    scale = np.divide(along, spread, out=np.zeros_like(mean), where=spread != 0)
    return scale, mean - scale * middle


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


assert all(FORMATS[name].elements == GROUP for name in _FORMATS.values())

__all__ = ["Quantize", "QuantizeKind", "Quantized", "QuantizedLayer", "quantized"]
