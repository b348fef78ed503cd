"""What an attention step computes, whichever kernel takes it: sizes, strides, masks, scaling and rotation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.backward import BackwardOp
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bf16, bool_, f16, f32, i32
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.kernels.choice import Refused
from dovetail.kernels.loops.ir import stretched
from dovetail.kernels.spec import TensorLocations
from dovetail.library import ATTENTIONS
from dovetail.library.attention import Filled, attention, scores_tell_unseen
from dovetail.library.rope import Form
from dovetail.library.softmax import Empty
from dovetail.ops.region import anchor_of
from dovetail.plan.alias import Alias, find_aliases

StoredFloat = Literal["float", "half", "bfloat"]
_DEFAULTS: Mapping[str, Any] = {
    "softcap": None,
    "causal": False,
    "window": None,
    "fill": None,
    "filled": "last",
    "empty": "nan",
    "zero_unseen": False,
}
"""Options that not every op has."""


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention. Strides are in bytes: leading axes, head, row, and the axis that is read along."""

    lead: tuple[Size, ...]
    heads: Size
    queries: Size
    keys: Size
    d: int
    dv: int
    stored: StoredFloat
    """The type of elements in memory; they are computed with as f32."""
    cached: Mapping[str, StoredFloat]
    """That of keys and of values, which may be f16 where all else is f32."""
    groups: int
    """Heads of queries that share a head of keys and values."""
    strides: Mapping[str, tuple[Size, ...]]
    """Of q, k, v and y, and of those present of mask, keep, sinks, and cos and sin for queries and for keys."""
    scale: float
    softcap: float | None
    causal: bool
    window: int | None
    fill: float | None
    filled: Filled
    empty: Empty
    zero_unseen: bool
    rotated: int | None
    """Features that are rotated; None without rope."""
    form: Form
    page: int
    """Keys of a page, where a table says which pages a sequence has; 0 where keys are the rows of one tensor.

    The one leading axis is that of sequences then, k and v have axes of pages, heads, rows of a page and features, and
    `keys` are as many as pages of the table have room for: those that a sequence has are in `lengths`.
    """

    @property
    def fill_takes_all(self) -> bool:
        """Whether no score is seen through a fill that is added to it."""
        return self.filled != "added" or self.fill is None or self.fill <= -1e30

    @property
    def lost_below(self) -> float | None:
        """From which score down hidden keys count as well; None where they never do.

        With masks and scores on top of the fill half of it is left, for none of them is that large.
        """
        if self.fill is None or math.isinf(self.fill):
            return None
        return self.fill + 200.0 if self.filled == "last" else self.fill / 2

    @property
    def shared(self) -> Size:
        """Heads of keys and values."""
        return self.heads // self.groups

    @property
    def pointers(self) -> tuple[str, ...]:
        """The tensors that a kernel reads and writes."""
        rope = ("cos", "sin") if self.rotated is not None else ()
        pages = ("table", "lengths") if self.page else ()
        return ("q", "k", "v", *pages, *rope, *(n for n in ("mask", "keep", "sinks") if n in self.strides), "y")


def attention_inside(value: Value) -> Value | None:
    """The attention of a region that computes nothing before it; None for other regions."""
    anchor = anchor_of(value.attrs["body"])
    if anchor is None or anchor.op not in ATTENTIONS:
        return None
    return anchor if all(v.op is leaf.ARGUMENT for v in anchor.operands) else None


def attention_call(value: Value, anchor: Value) -> Value:
    """The attention of a region, called with the operands of the region."""
    return anchor.with_operands(tuple([value.operands[int(v.attrs["index"])] for v in anchor.operands]))


@dataclass(frozen=True, slots=True)
class Widened:
    """The attention of a region that widens keys or values of f16 and computes nothing else."""

    anchor: Value
    call: Mapping[str, Any]
    """Its arguments: those of the region, or views of them, keys and values before they are widened."""
    places: Mapping[Value, Alias]
    """Where the elements of each argument are, counted from the operand of the region."""
    operands: Mapping[Value, Value]
    """The operand of the region that each argument is."""

    def attention(self, written: Mapping[str, Value], locations: TensorLocations) -> Attention | Refused:
        """What it computes, with other tensors by name."""
        return attention_of(self.anchor, self.call, lambda v: self.places.get(v) or locations(v), written)

    def operand(self, name: str) -> Value:
        """The operand of the region with an argument."""
        return self.operands[self.places[self.call[name]].root]

    def offset(self, name: str) -> Size:
        """Bytes before the first element of an argument in that operand."""
        return self.places[self.call[name]].offset


def find_widened(value: Value, locations: TensorLocations) -> Widened | None:
    """Such an attention; None for other regions."""
    body = value.attrs["body"]
    anchor = anchor_of(body)
    if anchor is None or anchor.op is not attention or body.results != (anchor,):
        return None
    call = dict(attention.arguments(anchor.operands, anchor.attrs))
    call |= {name: call[name].operands[0] for name in ("k", "v") if _widens(call[name])}
    operands = [x for x in call.values() if isinstance(x, Value)]
    arguments = {leaf.argument(i, v.tensor): v for i, v in enumerate(value.operands)}
    known = {argument: Alias(argument, 0, locations(v).strides) for argument, v in arguments.items()}
    aliases = known | find_aliases([v for v in walk(operands) if v not in arguments], known)
    if any(x not in aliases or aliases[x].root not in arguments for x in operands):
        return None
    return Widened(anchor, call, aliases, arguments)


def _widens(value: Value) -> bool:
    return value.op is ops.cast and value.dtype is f32 and value.operands[0].dtype is f16


def axes_of(anchor: Value) -> tuple[str, ...]:
    """The names of the axes of a result; it may have none of heads."""
    lead = [f"lead{i}" for i in range(anchor.rank - 3)]
    return (*lead, *(["head"] if anchor.rank > 2 else []), "row", "column")


def attention_of(
    value: Value,
    call: Mapping[str, Any],
    locations: Callable[[Value], Alias],
    written: Mapping[str, Value] | None = None,
) -> Attention | Refused:
    """The attention of a value with these arguments. `written` are further tensors by name: without any, y."""
    call = {**_DEFAULTS, **call}
    q, k, v = call["q"], call["k"], call["v"]
    mask, keep, sinks, cos, sin = (call.get(n) for n in ("mask", "keep", "sinks", "cos", "sin"))
    tensors: list[Value] = [x for x in (q, k, v, mask, sinks, cos, sin) if x is not None]
    kinds: dict[object, StoredFloat] = {f32: "float", f16: "half", bf16: "bfloat"}
    stored = kinds.get(value.dtype)
    alike = [x for x in tensors if x not in (k, v) or not (x.dtype is f16 and value.dtype is f32)]
    if stored is None or any(x.dtype is not value.dtype for x in alike):
        return Refused("tensors_share_a_float_dtype", ", ".join(x.dtype.name for x in tensors), "f32, f16 or bf16")
    if keep is not None and keep.dtype is not bool_:
        return Refused("keep_is_boolean", keep.dtype.name)
    if not scores_tell_unseen(call):
        return Refused("unseen_keys_have_no_score", f"filled with {call['fill']}", "-inf")
    if k.rank != q.rank or v.rank != q.rank:
        return Refused("ranks_are_equal", f"{q.rank}, {k.rank} and {v.rank}")
    d, dv = q.shape[-1], v.shape[-1]
    if not (isinstance(d, int) and isinstance(dv, int) and d > 0 and dv > 0):
        return Refused("features_are_known", f"{d} and {dv}")
    strides = _strides(value, call, locations, {"y": value} if written is None else written)
    rotated: int | None = None
    if cos is not None:
        rotated = d if call["rotated"] is None else int(call["rotated"])
        angles = [strides[n][-1] for n in ("cos_q", "sin_q", "q", "k")]
        if any(s != value.dtype.itemsize for s in angles) or rotated % 2:
            return Refused("rotated_features_are_dense_and_even", str(rotated))
    return Attention(
        lead=value.shape[:-3],
        heads=q.shape[-3] if q.rank > 2 else 1,
        queries=q.shape[-2],
        keys=k.shape[-2],
        d=d,
        dv=dv,
        stored=stored,
        cached={"k": kinds[k.dtype], "v": kinds[v.dtype]},
        groups=call["groups"] or (_all_heads(q, k) if q.rank > 2 else 1),
        strides=strides,
        scale=1.0 if call["scale"] is None else call["scale"],
        softcap=call["softcap"],
        causal=call["causal"],
        window=call["window"],
        fill=call["fill"],
        filled=call["filled"],
        empty=call["empty"],
        zero_unseen=call["zero_unseen"],
        rotated=rotated,
        form=call.get("form", "half"),
        page=0,
    )


def paged_attention(
    y: Value,
    call: Mapping[str, Value],
    locations: Callable[[Value], Alias],
    *,
    scale: float,
    causal: bool = False,
) -> Attention | Refused:
    """The attention of queries (sequence, head, query, feature) to keys and values that a table of pages has.

    `k` and `v` have axes of pages, heads, keys of a page and features, in whichever order they are in memory.
    `table[sequence, n]` is the page with the keys from n times its size on, and `lengths[sequence]` how many keys a
    sequence has: without any its results are 0. Causal queries are the last of their sequence.
    """
    q, k, v, table, lengths = (call[name] for name in ("q", "k", "v", "table", "lengths"))
    kinds: dict[object, StoredFloat] = {f32: "float", f16: "half", bf16: "bfloat"}
    if any(x.dtype not in kinds for x in (q, k, v, y)) or y.dtype is not q.dtype:
        return Refused("tensors_are_floats", ", ".join(x.dtype.name for x in (q, k, v, y)), "f32, f16 or bf16")
    if table.dtype is not i32 or lengths.dtype is not i32:
        return Refused("pages_are_numbers", f"{table.dtype.name} and {lengths.dtype.name}", "i32")
    page, sizes = k.shape[-2], (*q.shape[1:], *k.shape[1:], v.shape[-1])
    if not all(isinstance(size, int) for size in sizes) or page == 0:
        return Refused("sizes_of_a_page_are_known", str(k.type))
    heads, queries, d, shared, page, _, dv = (size for size in sizes if isinstance(size, int))
    if heads % shared:
        return Refused("heads_divide", f"{heads} and {shared}")
    strides = {name: locations(x).strides for name, x in (*call.items(), ("y", y))}
    return Attention(
        lead=q.shape[:1],
        heads=heads,
        queries=queries,
        keys=table.shape[-1] * page,
        d=d,
        dv=dv,
        stored=kinds[q.dtype],
        cached={"k": kinds[k.dtype], "v": kinds[v.dtype]},
        groups=heads // shared,
        strides=strides,
        scale=scale,
        softcap=None,
        causal=causal and queries > 1,
        window=None,
        fill=None,
        filled="last",
        empty="nan",
        zero_unseen=True,
        rotated=None,
        form="half",
        page=page,
    )


def differentiates_by_head(value: Value) -> bool:
    """Whether the gradients of an attention can be computed in f32, each head of keys and values on its own."""
    assert isinstance(value.op, BackwardOp), "a backward op"
    forward = value.op.forward_value(value)
    call = attention.arguments(forward.operands, forward.attrs)
    q, k, v = call["q"], call["k"], call["v"]
    floats = [x for x in (q, k, v, call["mask"]) if x is not None]
    if any(x.dtype is not f32 for x in floats) or not q.rank == k.rank == v.rank:
        return False
    if call["softcap"] is not None or not scores_tell_unseen(call):
        return False
    if not all(isinstance(x.shape[-1], int) and x.shape[-1] > 0 for x in (q, v)):
        return False
    if not q.shape[:-3] == k.shape[:-3] == v.shape[:-3] == forward.shape[:-3]:
        return False
    heads, shared = (q.shape[-3], k.shape[-3]) if q.rank > 2 else (1, 1)
    return (isinstance(heads, int) and shared == 1) or shared * (call["groups"] or 1) == heads


def _strides(
    value: Value, call: Mapping[str, Any], locations: Callable[[Value], Alias], written: Mapping[str, Value]
) -> dict[str, tuple[Size, ...]]:
    """The strides of every tensor, broadcast to the axes of queries, keys or scores."""
    full = (*value.shape[:-1], call["k"].shape[-2])
    strides = {name: _shared(call[name], value, locations) for name in ("q", "k", "v")}
    strides |= {name: locations(x).strides for name, x in written.items()}
    for name, shape in (("mask", full), ("keep", full), ("sinks", (*value.shape[:-1], 1))):
        x = call.get(name)
        if x is not None:
            strides[name] = stretched(locations(x).strides, x.shape, shape)
    for name, which in (("cos", "q"), ("cos", "k"), ("sin", "q"), ("sin", "k")):
        x = call.get(name)
        if x is not None:
            shape = (*value.shape[:-3], *call[which].shape[-3:])
            strides[f"{name}_{which}"] = stretched(locations(x).strides, x.shape, shape)
    # Without an axis of heads there is one head: a view with a stride that is never taken.
    return strides if value.rank > 2 else {name: (0, *own) for name, own in strides.items()}


def _all_heads(q: Value, k: Value) -> int:
    """How many heads share one of the keys where nothing says so: all, if it has one."""
    return q.shape[-3] if isinstance(q.shape[-3], int) and k.shape[-3] == 1 else 1


def _shared(x: Value, result: Value, locations: Callable[[Value], Alias]) -> tuple[Size, ...]:
    """The strides of queries, keys or values; one batch or head for all of the result's is read again and again."""
    strides = locations(x).strides
    axes = zip(strides[:-2], x.shape[:-2], result.shape[:-2], strict=True)
    return (*(0 if size == 1 and own != 1 else stride for stride, size, own in axes), *strides[-2:])


__all__ = [
    "Attention",
    "StoredFloat",
    "Widened",
    "attention_call",
    "attention_inside",
    "attention_of",
    "axes_of",
    "differentiates_by_head",
    "find_widened",
    "paged_attention",
]
