"""Attend: queries and keys rotated as they are read."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.codegen.llvm.simd import STORED, VectorText
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Part
from dovetail.library.rope import Form
from dovetail.targets.cpu.attention.parts import finished


class _Rows(VectorText):
    """Rows whose places are counted in bytes of f32, whatever they are stored as."""

    def __init__(self, lanes: int, stored: str) -> None:
        super().__init__(lanes)
        self.stored = stored

    def own(self, at: str) -> str:
        return at if self.stored == "float" else self.let(f"sdiv i64 {at}, {4 // STORED[self.stored]}")

    def row(self, pointer: str, at: str) -> str:
        return self.load_as(self.at(pointer, self.own(at)), self.stored)


def make_rotate(vectors: CpuDevice, d: int, rotated: int, form: Form, stored: str) -> Part:
    """to[r] = x[r] * cos[r] + turned(x[r]) * sin[r] in the first `rotated` features, x[r] in the others."""
    t = _Rows(vectors.lanes, stored)
    with t.loop("0", "%rows") as r:
        x, cos, sin = (t.at(f"%{n}", t.let(f"mul i64 {r}, %{n}_stride")) for n in ("x", "cos", "sin"))
        to = t.at("%to", t.let(f"mul i64 {r}, {4 * d}"))
        if form == "half":
            _halves(t, x, cos, sin, to, rotated // 2)
        else:
            _neighbours(t, x, cos, sin, to, rotated)
        _each(t, rotated, d, lambda at: t.store(t.row(x, at), t.at(to, at)), lambda at: _moved(t, x, to, at))
    given = "ptr noalias readonly %x, i64 %x_stride, ptr readonly %cos, i64 %cos_stride, ptr readonly %sin"
    name = f"attend_rotate_{vectors.lanes}_{d}_{rotated}_{form}_{stored}"
    return finished(name, f"{given}, i64 %sin_stride, i64 %rows, ptr noalias %to", t)


def _each(t: _Rows, first: int, end: int, whole: Callable[[str], None], one: Callable[[str], None]) -> None:
    """CpuDevice from a feature on, then single features; each is told how many bytes lie before it."""
    vectors = (end - first) // t.lanes
    if vectors:
        with t.loop("0", str(vectors)) as i:
            whole(t.let(f"add i64 {t.let(f'mul i64 {i}, {4 * t.lanes}')}, {4 * first}"))
    if first + vectors * t.lanes < end:
        with t.loop(str(first + vectors * t.lanes), str(end)) as c:
            one(t.let(f"mul i64 {c}, 4"))


def _moved(t: _Rows, x: str, to: str, at: str) -> None:
    t(f"store float {_float(t, x, at)}, ptr {t.at(to, at)}, align 4")


def _float(t: _Rows, x: str, at: str) -> str:
    return t.number_at(t.at(x, t.own(at)), t.stored)


def _halves(t: _Rows, x: str, cos: str, sin: str, to: str, half: int) -> None:
    def whole(at: str) -> None:
        other = t.let(f"add i64 {at}, {4 * half}")
        low, high = t.row(x, at), t.row(x, other)
        turned = t.let(f"fneg {t.kind} {high}")
        t.store(_sum(at, low, turned), t.at(to, at))
        t.store(_sum(other, high, low), t.at(to, other))

    def _sum(at: str, own: str, turned: str) -> str:
        return t.fma(turned, t.row(sin, at), t.mul(own, t.row(cos, at)))

    def one(at: str) -> None:
        other = t.let(f"add i64 {at}, {4 * half}")
        low, high = _float(t, x, at), _float(t, x, other)
        _turn(t, at, low, t.let(f"fneg float {high}"), cos, sin, to)
        _turn(t, other, high, low, cos, sin, to)

    _each(t, 0, half, whole, one)


def _neighbours(t: _Rows, x: str, cos: str, sin: str, to: str, rotated: int) -> None:
    swapped = [i ^ 1 for i in range(t.lanes)]

    def whole(at: str) -> None:
        own = t.row(x, at)
        turned = t.shuffle(own, "poison", swapped)
        even = t.let(f"fneg {t.kind} {turned}")
        turned = t.shuffle(even, turned, [i + t.lanes if i % 2 else i for i in range(t.lanes)])
        t.store(t.fma(turned, t.row(sin, at), t.mul(own, t.row(cos, at))), t.at(to, at))

    def one(at: str) -> None:
        after = t.let(f"add i64 {at}, 4")
        even, odd = _float(t, x, at), _float(t, x, after)
        _turn(t, at, even, t.let(f"fneg float {odd}"), cos, sin, to)
        _turn(t, after, odd, even, cos, sin, to)

    vectors = rotated // t.lanes
    if vectors:
        with t.loop("0", str(vectors)) as i:
            whole(t.let(f"mul i64 {i}, {4 * t.lanes}"))
    with t.loop(str(vectors * t.lanes // 2), str(rotated // 2)) as pair:
        one(t.let(f"mul i64 {pair}, 8"))


def _turn(t: _Rows, at: str, own: str, turned: str, cos: str, sin: str, to: str) -> None:
    kept = t.let(f"fmul float {own}, {_float(t, cos, at)}")
    moved = t.let(f"fmul float {turned}, {_float(t, sin, at)}")
    t(f"store float {t.let(f'fadd float {kept}, {moved}')}, ptr {t.at(to, at)}, align 4")
