"""Casts as LLVM's instructions: each is what NumPy's meaning says, bit for bit."""

from __future__ import annotations

from dovetail.codegen.llvm.types import NARROW, InstructionWriter, literal, spelled, stored
from dovetail.ir.dtype import DType, bf16, bool_, f32, f64, i32, whole_range


def cast(w: InstructionWriter, x: str, source: DType, target: DType) -> str:
    """The same number in another dtype: floats are cut and kept in range, integers wrap, bool is != 0."""
    if source is target:
        return x
    if source is bf16:
        return cast(w, of_bf16(w, x), f32, target)
    here, there = spelled(source), spelled(target)
    if target is bool_:
        zero = literal(0, source)
        return w.let(f"fcmp une {here} {x}, {zero}" if source.is_float else f"icmp ne {here} {x}, {zero}")
    if source is bool_ or source.is_integer:
        if target.is_float:
            if target in NARROW and source is not bool_ and source.bits > 16:
                return cast(w, cast(w, x, source, f64), f64, target)
            if target is bf16:
                return to_bf16(w, cast(w, x, source, f32))
            return w.let(f"{'sitofp' if source.kind == 'int' else 'uitofp'} {here} {x} to {there}")
        width = 1 if source is bool_ else source.bits
        if width == target.bits:
            return x
        how = "trunc" if width > target.bits else "sext" if source.kind == "int" else "zext"
        return w.let(f"{how} {here} {x} to {there}")
    if target.is_float:
        if source in NARROW and target in NARROW:
            return cast(w, cast(w, x, source, f32), f32, target)
        if source is f64 and target in NARROW:
            return cast(w, _rounded_to_odd(w, x), f32, target)
        if target is bf16:
            return to_bf16(w, x)
        return w.let(f"{'fptrunc' if source.bits > target.bits else 'fpext'} {here} {x} to {there}")
    if source in NARROW:
        wide = cast(w, x, source, f32)
        # LLVM 22 forgets NaN where it turns vectors of f16 to i16 at once; i32 goes between.
        return cast(w, wide, f32, target) if target.bits > 16 else _saturated(w, cast(w, wide, f32, i32), target)
    return _cut(w, x, source, target)


def _cut(w: InstructionWriter, x: str, source: DType, target: DType) -> str:
    """A float as an integer, kept in range, NaN as 0. LLVM's own way to say it takes vectors apart."""
    here, there = spelled(source), spelled(target)
    low, high = whole_range(target)
    least, beyond = literal(low, source), literal(high + 1, source)
    under, over = w.let(f"fcmp olt {here} {x}, {least}"), w.let(f"fcmp oge {here} {x}, {beyond}")
    outside = w.let(f"or i1 {w.let(f'fcmp uno {here} {x}, {x}')}, {w.let(f'or i1 {under}, {over}')}")
    safe = w.let(f"select i1 {outside}, {here} {literal(0, source)}, {here} {x}")
    if target.bits < 32:
        rounded = w.let(f"trunc i32 {w.let(f'fptosi {here} {safe} to i32')} to {there}")
    else:
        rounded = w.let(f"{'fptosi' if target.kind == 'int' else 'fptoui'} {here} {safe} to {there}")
    rounded = w.let(f"select i1 {under}, {there} {low}, {there} {rounded}")
    return w.let(f"select i1 {over}, {there} {high}, {there} {rounded}")


def anchor(w: InstructionWriter, x: str, by: str) -> str:
    """A sum that rounds to an integer: no flag lets LLVM take it apart."""
    return w.let(f"fadd float {x}, {by}")


def low_bits(w: InstructionWriter, x: str, zero: str, target: DType) -> str:
    """The integer in the low bits of an anchored float, plus a zero point; NaN becomes 0."""
    bits = w.let(f"add i32 {w.let(f'bitcast float {x} to i32')}, {zero}")
    safe = w.let(f"select i1 {w.let(f'fcmp ord float {x}, {x}')}, i32 {bits}, i32 0")
    return w.let(f"trunc i32 {safe} to {spelled(target)}")


def _rounded_to_odd(w: InstructionWriter, x: str) -> str:
    """An f64 as f32, such that rounding it once more to 16 bits rounds only once. LLVM calls a library for the two."""
    near = w.let(f"fptrunc double {x} to float")
    back = w.let(f"fpext float {near} to double")
    bits = w.let(f"bitcast float {near} to i32")
    w.use("declare double @llvm.fabs.f64(double)")
    size, distance = (w.let(f"call double @llvm.fabs.f64(double {y})") for y in (x, back))
    beyond = w.let(f"fcmp ogt double {distance}, {size}")
    cut = w.let(f"select i1 {beyond}, i32 {w.let(f'sub i32 {bits}, 1')}, i32 {bits}")
    differs = w.let(f"fcmp one double {back}, {x}")
    odd = w.let(f"select i1 {differs}, i32 {w.let(f'or i32 {cut}, 1')}, i32 {bits}")
    return w.let(f"bitcast i32 {odd} to float")


def to_bf16(w: InstructionWriter, x: str, lanes: int = 0) -> str:
    """The upper half of an f32 or of a vector of `lanes`, rounded to even; NaN stays NaN.

    LLVM calls a library on machines without an instruction for it, and not every system has that library.
    """
    if w.rounds_to_bf16 and not lanes:
        # The instruction for two is far faster than that for one.
        w.use("declare <2 x bfloat> @llvm.nvvm.ff2bf16x2.rn(float, float)")
        both = w.let(f"call <2 x bfloat> @llvm.nvvm.ff2bf16x2.rn(float 0.0, float {x})")
        return w.let(f"trunc i32 {w.let(f'bitcast <2 x bfloat> {both} to i32')} to i16")
    real, whole, half, truth = (f"<{lanes} x {kind}>" if lanes else kind for kind in ("float", "i32", "i16", "i1"))

    def number(n: int) -> str:
        return f"splat (i32 {n})" if lanes else str(n)

    bits = w.let(f"bitcast {real} {x} to {whole}")
    last = w.let(f"and {whole} {w.let(f'lshr {whole} {bits}, {number(16)}')}, {number(1)}")
    rounded = w.let(f"add {whole} {bits}, {w.let(f'add {whole} {last}, {number(32767)}')}")
    quiet = w.let(f"or {whole} {bits}, {number(4194304)}")
    chosen = w.let(f"select {truth} {w.let(f'fcmp uno {real} {x}, {x}')}, {whole} {quiet}, {whole} {rounded}")
    return w.let(f"trunc {whole} {w.let(f'lshr {whole} {chosen}, {number(16)}')} to {half}")


def of_bf16(w: InstructionWriter, x: str, lanes: int = 0) -> str:
    """A bf16 or a vector of `lanes` as f32."""
    if w.takes_halves and not lanes:
        # One instruction takes either half of a register; a shift takes two where it is the upper one.
        pair = w.let(f"insertelement <2 x i16> zeroinitializer, i16 {x}, i32 1")
        return w.let(f"bitcast <2 x i16> {pair} to float")
    real, whole, half = (f"<{lanes} x {kind}>" if lanes else kind for kind in ("float", "i32", "i16"))
    upper = w.let(f"shl {whole} {w.let(f'zext {half} {x} to {whole}')}, {'splat (i32 16)' if lanes else '16'}")
    return w.let(f"bitcast {whole} {upper} to {real}")


def _saturated(w: InstructionWriter, x: str, target: DType) -> str:
    """An i32 kept in the range of a narrower type of integers."""
    for name, bound in zip(("smax", "smin"), whole_range(target), strict=True):
        w.use(f"declare i32 @llvm.{name}.i32(i32, i32)")
        x = w.let(f"call i32 @llvm.{name}.i32(i32 {x}, i32 {bound})")
    return cast(w, x, i32, target)


def bitcast(w: InstructionWriter, x: str, source: DType, target: DType) -> str:
    """The bits of one dtype as another of the same width; any bit set is true."""
    if source is bool_:
        x = w.let(f"zext i1 {x} to i8")
    if target is bool_:
        return w.let(f"icmp ne i8 {x}, 0")
    here, there = stored(source), stored(target)
    return x if here == there else w.let(f"bitcast {here} {x} to {there}")
