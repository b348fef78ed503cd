"""Attend: attention as one kernel; queries, keys, values and masks are read where they lie."""

from __future__ import annotations

import hashlib
from math import inf
from typing import Any

from dovetail import library
from dovetail.declare.fused import FusedOp
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bf16, bool_, f16, f32
from dovetail.ir.value import Value
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.families.map import stretched
from dovetail.kernels.spec import Job, Places, Template
from dovetail.plan.plan import Step
from dovetail.targets.cpu.attention.driver import Attend, write


def make_attend(step: Step, places: Places, vectors: CpuDevice) -> Job | None:
    """The job of an attention of floats, rotated or not; None where a head's features are not known or not dense."""
    value = step.value
    if not isinstance(value.op, FusedOp) or value.op not in (library.attention, library.rope_attention):
        return None
    call: dict[str, Any] = value.op.arguments(value.operands, value.attrs)
    asked = _asked(value, call, places, vectors)
    if asked is None:
        return None
    written = write(asked, _PLACE)
    name = f"attend_{hashlib.blake2b(written.text.encode(), digest_size=10).hexdigest()}"
    text = written.text.replace(f"@{_PLACE}(", f"@{name}(")
    template = Template(name, text, written.uses, asked.pointers, written.sizes, written.scratch, ready=written.parts)
    points: dict[str, Value] = {n: value if n == "y" else call[n] for n in asked.pointers}
    return Job(template, points, asked.tiles, asked.work)


_PLACE = "kernel"
"""Stands for the name, which tells the text."""


def _asked(value: Value, call: dict[str, Any], places: Places, vectors: CpuDevice) -> Attend | None:
    q, k, v = call["q"], call["k"], call["v"]
    mask, keep, cos, sin = (call.get(n) for n in ("mask", "keep", "cos", "sin"))
    tensors: list[Value] = [x for x in (q, k, v, mask, cos, sin) if x is not None]
    stored = {f32: "float", f16: "half", bf16: "bfloat"}.get(value.dtype)
    if (
        stored is None
        or any(x.dtype is not value.dtype for x in tensors)
        or (keep is not None and keep.dtype is not bool_)
    ):
        return None
    if call["zero_unseen"] and call["fill"] not in (None, -inf):
        return None  # a row whose keys all have a finite score looks like any other
    if k.rank != q.rank or v.rank != q.rank:
        return None
    d, dv = q.shape[-1], v.shape[-1]
    if not (isinstance(d, int) and isinstance(dv, int) and d > 0 and dv > 0):
        return None
    full = (*value.shape[:-1], k.shape[-2])
    strides = {name: _shared(x, value, places) for name, x in (("q", q), ("k", k), ("v", v))}
    strides["y"] = places(value).strides
    for name, x in (("mask", mask), ("keep", keep)):
        if x is not None:
            strides[name] = stretched(places(x).strides, x.shape, full)
    rotated: int | None = None
    if cos is not None and sin is not None:
        rotated = d if call["rotated"] is None else int(call["rotated"])
        for name, x in (("cos", cos), ("sin", sin)):
            for which, of in (("q", q), ("k", k)):
                strides[f"{name}_{which}"] = stretched(places(x).strides, x.shape, (*value.shape[:-3], *of.shape[-3:]))
        angles = [strides[n][-1] for n in ("cos_q", "sin_q", "q", "k")]
        if any(s != value.dtype.itemsize for s in angles) or rotated % 2:
            return None
    return Attend(
        vectors=vectors,
        lead=value.shape[:-3],
        heads=q.shape[-3],
        queries=q.shape[-2],
        keys=k.shape[-2],
        d=d,
        dv=dv,
        stored=stored,
        groups=call["groups"] or _all_heads(q, k),
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
    )


def _all_heads(q: Value, k: Value) -> int:
    """How many heads share one of the keys where nothing says so: all, if it has one."""
    return q.shape[-3] if isinstance(q.shape[-3], int) and k.shape[-3] == 1 else 1


def _shared(x: Value, result: Value, places: Places) -> tuple[Size, ...]:
    """The strides of queries, keys or values; one batch or head for all of the result's is read again and again."""
    strides = places(x).strides
    axes = zip(strides[:-2], x.shape[:-2], result.shape[:-2], strict=True)
    return (*(0 if size == 1 and own != 1 else stride for stride, size, own in axes), *strides[-2:])


__all__ = ["make_attend"]
