"""What an attention on a GPU reads: its problem, where its factors are, and whether vectors of them can be copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.ir.dim import Size, floordiv
from dovetail.ir.dtype import DType, bf16, bool_, f16, f32, i32, i64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.attention.masks import loads_wide
from dovetail.kernels.gpu.attention.tile import lead_of
from dovetail.kernels.gpu.gemm.fragments import Factor, divided, less, remainder
from dovetail.kernels.gpu.policy import WIDEST
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import ZERO, Call, Expr, Extent, Load, Name, Set, Statement, Tensor, add, minimum
from dovetail.kernels.problems.attention import Attention, attention_of
from dovetail.kernels.request import LAUNCH, Request
from dovetail.ops.view import quotient


def rotated(a: Attention, dtype: DType, tensor: Tensor, name: str, at: tuple[Expr, ...]) -> Expr:
    """A feature of a query or key with its rotation."""
    turned = a.rotated or 0
    k = at[-1]
    own, half = cast_to(Load(tensor, at), f32), turned // 2
    if a.form == "half":
        low = less(k, Extent(half))
        other = Call("where", (low, add(k, Extent(half)), Call("sub", (k, Extent(half)), i64)), i64)
    else:
        low = Call("equal", (remainder(k, 2), ZERO), bool_)
        other = Call("bit_xor", (k, Extent(1)), i64)
    other = minimum(other, Extent(a.d - 1))
    pair = cast_to(Load(tensor, (*at[:-1], Call("maximum", (other, ZERO), i64))), f32)
    pair = Call("where", (low, Call("neg", (pair,), f32), pair), f32)
    turn = minimum(k, Extent(turned - 1))
    cos, sin = [
        cast_to(Load(Tensor(n, dtype, a.strides[f"{n}_{name}"]), (*at[:-1], turn)), f32) for n in ("cos", "sin")
    ]
    turned_pair = Call("add", (Call("mul", (own, cos), f32), Call("mul", (pair, sin), f32)), f32)
    if turned < a.d:
        turned_pair = Call("where", (less(k, Extent(turned)), turned_pair, own), f32)
    return cast_to(turned_pair, dtype)


AXES: Mapping[str, str] = MappingProxyType({"q": "k", "k": "k", "v": "row"})
"""Along which axis queries, keys and values are dense where vectors of them are copied."""
COPY_BYTES = 16
"""Of a vector."""


@dataclass(frozen=True, slots=True)
class AttendSources:
    """An attention and its factors in memory."""

    problem: Attention
    dtype: DType
    bindings: Mapping[str, Value]
    device: GpuDevice
    factors: Mapping[str, Factor]
    copies: bool
    """Whether 16 bytes of each factor can be copied at once."""
    wide: bool
    """Whether 16 bools of the mask can be loaded at once."""
    aligned: int
    """The bytes that the start of the results is a multiple of."""
    request: Request = LAUNCH


def sources_of(of: StepProblem[GpuDevice]) -> AttendSources | Refused:
    """What an attention reads."""
    value = of.value
    if not isinstance(value.op, FusedOp):
        return Refused("op_is_attention", value.op.name)
    call: dict[str, Any] = value.op.arguments(value.operands, value.attrs)
    attention = attention_of(value, call, of.locations)
    if isinstance(attention, Refused):
        return attention
    if max(attention.d, attention.dv) > WIDEST:
        return Refused("features_fit_registers", str(max(attention.d, attention.dv)), f"at most {WIDEST}")
    bindings = {name: of.step.results[0] if name == "y" else call[name] for name in attention.pointers}
    problem = by_key_head(attention)
    aligned = of.locations.alignment(dict(bindings))
    factors = {name: _factor(problem, value.dtype, name) for name in AXES}
    copies = all([_is_dense(factor, AXES[name], aligned[name]) for name, factor in factors.items()])
    wide = "keep" in problem.strides and loads_wide(problem, aligned["keep"])
    device, y = of.device, aligned["y"]
    return AttendSources(problem, value.dtype, bindings, device, factors, copies, wide, y, of.request)


def narrow_sources_of(of: StepProblem[GpuDevice]) -> AttendSources | Refused:
    """The same of an attention of 16-bit floats."""
    sources = of.once(sources_of)
    if isinstance(sources, Refused) or sources.dtype in (bf16, f16):
        return sources
    return Refused("tensor_cores_have_the_dtype", sources.dtype.name, "f16 or bf16")


def _factor(a: Attention, dtype: DType, name: str) -> Factor:
    """Queries, keys or values along what is summed: features, or keys for the values."""
    strides, own = a.strides[name], lead_of(a)
    lead = own if name == "q" else (*own[:-1], divided(own[-1], a.groups))
    if name == "v":
        return Factor(Tensor("v", dtype, (*strides[:-2], strides[-1], strides[-2])), lead, a.dv, a.keys)
    tensor = Tensor(name, dtype, strides)
    rows = a.queries if name == "q" else a.keys
    read = None if a.rotated is None else partial(rotated, a, dtype, tensor, name)
    return Factor(tensor, lead, rows, a.d, read, ahead=name == "k")


def _is_dense(factor: Factor, axis: str, alignment: int) -> bool:
    """Whether 16 bytes along an axis can be copied at once; steps between rows may be symbolic."""
    item = factor.tensor.dtype.itemsize
    *lead, row, k = factor.tensor.strides
    dense, along, size = (k, row, factor.depth) if axis == "k" else (row, k, factor.rows)
    apart = (factor.tensor.offset, *lead, along, alignment)
    aligned = all(quotient(step, COPY_BYTES) is not None for step in apart)
    is_whole = isinstance(size, int) and size * item % COPY_BYTES == 0
    return factor.read is None and dense == item and is_whole and aligned


@dataclass(frozen=True, slots=True)
class KeyRows:
    """Keys and values that are the rows of one tensor for each head."""

    problem: Attention
    lead: tuple[Expr, ...]
    """The index along each axis before that of keys."""

    @property
    def count(self) -> Expr:
        """Keys of a head."""
        return Extent(self.problem.keys)

    def share(self, parts: int) -> Expr:
        """Keys of each of some blocks, at most."""
        return Extent(floordiv(self.problem.keys + (parts - 1), parts))

    def counted(self) -> list[Statement]:
        """Load what a block needs before the first of its keys."""
        return []

    def located(self, number: int) -> list[Statement]:
        """Locate the key `near` with a number: its page and its slot."""
        return []

    def place(self, number: int) -> tuple[Expr, ...]:
        """The index of that key, without its features."""
        return (*self.lead, Name(f"near{number}"))


@dataclass(frozen=True, slots=True)
class KeyPages(KeyRows):
    """Keys and values of a sequence in pages, whose numbers are in a table."""

    @property
    def count(self) -> Expr:
        return Name("length")

    def share(self, parts: int) -> Expr:
        return self.count if parts == 1 else divided(add(self.count, Extent(parts - 1)), parts)

    def counted(self) -> list[Statement]:
        a = self.problem
        length = Load(Tensor("lengths", i32, a.strides["lengths"]), self.lead[:1])
        # No sequence has more keys than pages of the table have room for.
        return [Set("length", clamped_to(cast_to(length, i64), a.keys))]

    def located(self, number: int) -> list[Statement]:
        a, near = self.problem, Name(f"near{number}")
        page = Load(Tensor("table", i32, a.strides["table"]), (*self.lead[:1], divided(near, a.page)))
        return [Set(f"page{number}", cast_to(page, i64)), Set(f"slot{number}", remainder(near, a.page))]

    def place(self, number: int) -> tuple[Expr, ...]:
        return Name(f"page{number}"), *self.lead[1:], Name(f"slot{number}")


def clamped_to(count: Expr, most: Size) -> Expr:
    """A number from 0 to the most."""
    return Call("maximum", (minimum(count, Extent(most)), ZERO), i64)


def keys_of(a: Attention) -> KeyRows:
    """Where the keys and values of a head of queries are."""
    *lead, head = lead_of(a)
    shared = (*lead, head if a.groups == 1 else divided(head, a.groups))
    return KeyPages(a, shared) if a.page else KeyRows(a, shared)


def by_key_head(a: Attention) -> Attention:
    """The same attention with the queries of all heads that share keys as the rows of one head, where each has one.

    Keys and values are then read once for all of them.
    """
    if a.queries != 1 or not 1 < a.groups <= 16 or a.causal:
        return a

    def rows(strides: tuple[Size, ...]) -> tuple[Size, ...]:
        *lead, head, _, last = strides
        return (*lead, head * a.groups, head, last)

    moved = ("q", "y", "mask", "keep", "cos_q", "sin_q")
    strides = {name: rows(s) if name in moved else s for name, s in a.strides.items()}
    return replace(a, heads=a.shared, queries=a.groups, groups=1, strides=strides)


__all__ = [
    "AXES",
    "COPY_BYTES",
    "AttendSources",
    "KeyRows",
    "by_key_head",
    "keys_of",
    "narrow_sources_of",
    "sources_of",
]
