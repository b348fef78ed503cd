"""Primitives of scalars as LLVM's instructions, type by type. Each is what its NumPy meaning says, bit for bit where
whole numbers are concerned and to the last few bits for functions such as exp."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

import numpy as np

from dovetail.errors import UnsupportedError
from dovetail.ir.dtype import DType, bf16, bool_, f16, f32, f64


class Writer(Protocol):
    """Where instructions go."""

    def let(self, instruction: str) -> str:
        """Append an instruction with a result, and give the name of the result."""
        ...

    def use(self, function: str) -> None:
        """Say that a function of the library of scalar functions is called."""
        ...


NARROW = {f16: "half", bf16: "bfloat"}
"""Floats that are computed in f32 and rounded after every step, as NumPy does."""


def spelled(dtype: DType) -> str:
    """The type of an element while it is computed with."""
    if dtype is bool_:
        return "i1"
    if dtype.is_integer:
        return f"i{dtype.bits}"
    found = {f16: "half", bf16: "bfloat", f32: "float", f64: "double"}.get(dtype)
    if found is None:
        raise UnsupportedError(f"arithmetic of {dtype.name} in compiled code", hint="cast it to f32")
    return found


def stored(dtype: DType) -> str:
    """The type of an element in memory."""
    return "i8" if dtype is bool_ else spelled(dtype)


def is_compiled(dtype: DType) -> bool:
    """Whether elements of a dtype can be computed with in compiled code."""
    return dtype.kind != "complex" and dtype.bits >= 8 and (not dtype.is_float or dtype in (f16, bf16, f32, f64))


def literal(value: complex, dtype: DType) -> str:
    """A number as LLVM writes it."""
    if dtype is bool_:
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(value.real))
    number = float(np.asarray(value.real).astype(dtype.numpy).astype(np.float64))
    if dtype is f16:
        return f"0xH{np.float16(number).view(np.uint16):04X}"
    if dtype is bf16:
        return f"0xR{struct.unpack('<I', struct.pack('<f', number))[0] >> 16:04X}"
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def apply(w: Writer, op: str, operands: list[str], given: list[DType], result: DType, flags: str) -> str:
    """One primitive on scalars; `flags` go to sums and products of floats."""
    if op == "cast":
        return cast(w, operands[0], given[0], result)
    if op == "bitcast":
        return bitcast(w, operands[0], given[0], result)
    if op == "where":
        return w.let(f"select i1 {operands[0]}, {spelled(result)} {operands[1]}, {spelled(result)} {operands[2]}")
    dtype = given[0]
    if dtype in NARROW and op not in _BITS_ONLY:
        wide = [cast(w, x, d, f32) for x, d in zip(operands, given, strict=True)]
        found = apply(w, op, wide, [f32] * len(wide), f32 if result.is_float else result, flags)
        return cast(w, found, f32, result) if result.is_float else found
    if op in _COMPARED:
        return _compare(w, op, operands, dtype)
    table = _FLOAT if dtype.is_float else _BOOL if dtype is bool_ else _WHOLE
    rule = table.get(op)
    if rule is None:
        raise UnsupportedError(f"{op} of {dtype.name} in compiled code", hint="it runs on the host")
    return rule(w, operands, dtype, flags)


def has_rule(op: str, dtype: DType) -> bool:
    """Whether compiled code has a primitive for elements of a dtype."""
    if not is_compiled(dtype):
        return False
    table = _FLOAT if dtype.is_float else _BOOL if dtype is bool_ else _WHOLE
    return op in ("cast", "where", "bitcast") or op in _COMPARED or op in table


def is_function(op: str) -> bool:
    """Whether a primitive of floats is a function of `kernels.maths` rather than an instruction."""
    return op in _FUNCTIONS


_BITS_ONLY = {"neg", "abs", "real"}
_COMPARED = {
    "equal": ("oeq", "eq", "eq"),
    "not_equal": ("une", "ne", "ne"),
    "less": ("olt", "slt", "ult"),
    "less_equal": ("ole", "sle", "ule"),
    "greater": ("ogt", "sgt", "ugt"),
    "greater_equal": ("oge", "sge", "uge"),
}


def _compare(w: Writer, op: str, operands: list[str], dtype: DType) -> str:
    on_floats, on_signed, on_unsigned = _COMPARED[op]
    x, y = operands
    if dtype.is_float:
        return w.let(f"fcmp {on_floats} {spelled(dtype)} {x}, {y}")
    return w.let(f"icmp {on_signed if dtype.kind == 'int' else on_unsigned} {spelled(dtype)} {x}, {y}")


def cast(w: Writer, x: str, source: DType, target: DType) -> str:
    """The same number in another dtype: floats are cut and kept in range, whole numbers wrap, bool is != 0."""
    if source is target:
        return x
    here, there = spelled(source), spelled(target)
    if target is bool_:
        zero = literal(0, source)
        return w.let(f"fcmp une {here} {x}, {zero}" if source.is_float else f"icmp ne {here} {x}, {zero}")
    if source is bool_ or source.is_integer:
        if target.is_float:
            if target in NARROW and source is not bool_ and source.bits > 16:
                return cast(w, cast(w, x, source, f64), f64, target)
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
            return _to_bf16(w, x)
        return w.let(f"{'fptrunc' if source.bits > target.bits else 'fpext'} {here} {x} to {there}")
    sign = "fptosi" if target.kind == "int" else "fptoui"
    w.use(f"declare {there} @llvm.{sign}.sat.{there}.{_suffix(source)}({here})")
    return w.let(f"call {there} @llvm.{sign}.sat.{there}.{_suffix(source)}({here} {x})")


def _rounded_to_odd(w: Writer, x: str) -> str:
    """An f64 as f32, such that rounding it once more to 16 bits rounds only once. LLVM calls a library for the two."""
    near = w.let(f"fptrunc double {x} to float")
    back = w.let(f"fpext float {near} to double")
    bits = w.let(f"bitcast float {near} to i32")
    w.use("declare double @llvm.fabs.f64(double)")
    size, found = (w.let(f"call double @llvm.fabs.f64(double {y})") for y in (x, back))
    beyond = w.let(f"fcmp ogt double {found}, {size}")
    cut = w.let(f"select i1 {beyond}, i32 {w.let(f'sub i32 {bits}, 1')}, i32 {bits}")
    differs = w.let(f"fcmp one double {back}, {x}")
    odd = w.let(f"select i1 {differs}, i32 {w.let(f'or i32 {cut}, 1')}, i32 {bits}")
    return w.let(f"bitcast i32 {odd} to float")


def _to_bf16(w: Writer, x: str) -> str:
    """The upper half of an f32, rounded to even; NaN stays NaN. Few machines have it as an instruction."""
    bits = w.let(f"bitcast float {x} to i32")
    last = w.let(f"and i32 {w.let(f'lshr i32 {bits}, 16')}, 1")
    rounded = w.let(f"add i32 {bits}, {w.let(f'add i32 {last}, 32767')}")
    quiet = w.let(f"or i32 {bits}, 4194304")
    chosen = w.let(f"select i1 {w.let(f'fcmp uno float {x}, {x}')}, i32 {quiet}, i32 {rounded}")
    upper = w.let(f"trunc i32 {w.let(f'lshr i32 {chosen}, 16')} to i16")
    return w.let(f"bitcast i16 {upper} to bfloat")


def bitcast(w: Writer, x: str, source: DType, target: DType) -> str:
    """The bits of one dtype as another of the same width; any bit set is true."""
    if source is bool_:
        x = w.let(f"zext i1 {x} to i8")
    if target is bool_:
        return w.let(f"icmp ne i8 {x}, 0")
    here, there = stored(source), stored(target)
    return x if here == there else w.let(f"bitcast {here} {x} to {there}")


def _odd(w: Writer, x: str) -> str:
    """f64 as f32; what is cut off leaves the last bit set, so that rounding to f16 sees it. No machine has it at once."""
    near = w.let(f"fptrunc double {x} to float")
    back = w.let(f"fpext float {near} to double")
    w.use("declare double @llvm.fabs.f64(double)")
    sizes = [w.let(f"call double @llvm.fabs.f64(double {v})") for v in (back, x)]
    beyond = w.let(f"fcmp ogt double {sizes[0]}, {sizes[1]}")
    cut = w.let(f"sub i32 {w.let(f'bitcast float {near} to i32')}, {w.let(f'zext i1 {beyond} to i32')}")
    inexact = w.let(f"fcmp one double {back}, {x}")
    bits = w.let(f"or i32 {cut}, {w.let(f'zext i1 {inexact} to i32')}")
    return w.let(f"bitcast i32 {bits} to float")


def _suffix(dtype: DType) -> str:
    return {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}.get(spelled(dtype), spelled(dtype))


_Rule = Callable[[Writer, list[str], DType, str], str]


def _plain(instruction: str, *, flagged: bool = False) -> _Rule:
    def rule(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
        return w.let(f"{instruction}{f' {flags}' if flagged and flags else ''} {spelled(dtype)} {', '.join(xs)}")

    return rule


def _intrinsic(name: str, free: str = "") -> _Rule:
    """`free` is what LLVM may take for granted: nsz leaves open which of two zeros is the larger, as NumPy does."""

    def rule(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
        kind = spelled(dtype)
        full = f"llvm.{name}.{_suffix(dtype)}"
        w.use(f"declare {kind} @{full}({', '.join([kind] * len(xs))})")
        return w.let(f"call {f'{free} ' if free else ''}{kind} @{full}({', '.join(f'{kind} {x}' for x in xs)})")

    return rule


def _function(name: str) -> _Rule:
    """A function of the library of scalar functions; `kernels.maths` has its text."""

    def rule(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
        kind = spelled(dtype)
        full = f"{name}_{_suffix(dtype)}"
        w.use(full)
        return w.let(f"call {kind} @{full}({', '.join(f'{kind} {x}' for x in xs)})")

    return rule


def _signed(on_signed: str, on_unsigned: str) -> _Rule:
    def rule(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
        chosen = on_signed if dtype.kind == "int" else on_unsigned
        if chosen.startswith("llvm."):
            return _intrinsic(chosen.removeprefix("llvm."))(w, xs, dtype, flags)
        return w.let(f"{chosen} {spelled(dtype)} {', '.join(xs)}")

    return rule


def _reciprocal(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
    return w.let(f"fdiv {spelled(dtype)} {literal(1, dtype)}, {xs[0]}")


def _rsqrt(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
    return _reciprocal(w, [_intrinsic("sqrt")(w, xs, dtype, flags)], dtype, flags)


def _relu(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
    kind, zero = spelled(dtype), literal(0, dtype)
    # Not greater, so that NaN stays.
    test = f"fcmp olt {kind} {xs[0]}, {zero}" if dtype.is_float else f"icmp slt {kind} {xs[0]}, {zero}"
    if dtype.kind == "uint":
        return xs[0]
    return w.let(f"select i1 {w.let(test)}, {kind} {zero}, {kind} {xs[0]}")


def _divide(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
    """Cut towards zero; what NumPy gives for a division by 0 is 0, and the lowest number by -1 wraps."""
    return _safe_division("sdiv" if dtype.kind == "int" else "udiv", w, xs, dtype, on_zero="0")


def _remainder(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
    return _safe_division("srem" if dtype.kind == "int" else "urem", w, xs, dtype, on_zero="0")


def _safe_division(instruction: str, w: Writer, xs: list[str], dtype: DType, on_zero: str) -> str:
    kind = spelled(dtype)
    x, y = xs
    none = w.let(f"icmp eq {kind} {y}, 0")
    divisor = w.let(f"select i1 {none}, {kind} 1, {kind} {y}")
    if dtype.kind != "int":
        found = w.let(f"{instruction} {kind} {x}, {divisor}")
        return w.let(f"select i1 {none}, {kind} {on_zero}, {kind} {found}")
    flip = w.let(f"icmp eq {kind} {divisor}, -1")
    safe = w.let(f"select i1 {flip}, {kind} 1, {kind} {divisor}")
    found = w.let(f"{instruction} {kind} {x}, {safe}")
    turned = w.let(f"sub {kind} 0, {x}") if instruction == "sdiv" else "0"
    found = w.let(f"select i1 {flip}, {kind} {turned}, {kind} {found}")
    return w.let(f"select i1 {none}, {kind} {on_zero}, {kind} {found}")


def _modulo(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
    """The remainder with the sign of the divisor."""
    kind = spelled(dtype)
    left = _remainder(w, xs, dtype, flags)
    if dtype.kind != "int":
        return left
    differs = w.let(f"icmp slt {kind} {w.let(f'xor {kind} {left}, {xs[1]}')}, 0")
    some = w.let(f"icmp ne {kind} {left}, 0")
    moved = w.let(f"add {kind} {left}, {xs[1]}")
    return w.let(f"select i1 {w.let(f'and i1 {differs}, {some}')}, {kind} {moved}, {kind} {left}")


def _shift(instruction: Callable[[DType], str], keeps_sign: bool) -> _Rule:
    def rule(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
        kind, bits = spelled(dtype), dtype.bits
        inside = w.let(f"icmp ult {kind} {xs[1]}, {bits}")
        by = w.let(f"select i1 {inside}, {kind} {xs[1]}, {kind} 0")
        found = w.let(f"{instruction(dtype)} {kind} {xs[0]}, {by}")
        away = "0"
        if keeps_sign and dtype.kind == "int":
            away = w.let(f"ashr {kind} {xs[0]}, {bits - 1}")
        return w.let(f"select i1 {inside}, {kind} {found}, {kind} {away}")

    return rule


def _power(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
    """Squares and products, a bit of the exponent at a time; they wrap. Below 0 it is the inverse, cut to a whole."""
    kind = spelled(dtype)
    x, y = xs
    found, base = "1", x
    for bit in range(dtype.bits - (dtype.kind == "int")):
        taken = w.let(f"trunc {kind} {w.let(f'lshr {kind} {y}, {bit}')} to i1")
        found = w.let(f"select i1 {taken}, {kind} {w.let(f'mul {kind} {found}, {base}')}, {kind} {found}")
        base = w.let(f"mul {kind} {base}, {base}")
    if dtype.kind != "int":
        return found
    odd = w.let(f"trunc {kind} {y} to i1")
    turned = w.let(f"select i1 {odd}, {kind} -1, {kind} 1")
    is_one, is_minus = w.let(f"icmp eq {kind} {x}, 1"), w.let(f"icmp eq {kind} {x}, -1")
    inverse = w.let(f"select i1 {is_minus}, {kind} {turned}, {kind} 0")
    inverse = w.let(f"select i1 {is_one}, {kind} 1, {kind} {inverse}")
    return w.let(f"select i1 {w.let(f'icmp slt {kind} {y}, 0')}, {kind} {inverse}, {kind} {found}")


def _negative(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
    return w.let(f"sub {spelled(dtype)} 0, {xs[0]}")


def _not(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
    return w.let(f"xor {spelled(dtype)} {xs[0]}, {'true' if dtype is bool_ else '-1'}")


def _sign(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
    kind, zero = spelled(dtype), literal(0, dtype)
    if dtype.is_float:
        above, below = w.let(f"fcmp ogt {kind} {xs[0]}, {zero}"), w.let(f"fcmp olt {kind} {xs[0]}, {zero}")
        # 0 and NaN are their own sign; -0 becomes 0 as NumPy has it.
        rest = w.let(f"fadd {kind} {xs[0]}, {zero}")
    else:
        order = "s" if dtype.kind == "int" else "u"
        above, below = w.let(f"icmp {order}gt {kind} {xs[0]}, 0"), w.let(f"icmp {order}lt {kind} {xs[0]}, 0")
        rest = "0"
    low = w.let(f"select i1 {below}, {kind} {literal(-1, dtype)}, {kind} {rest}")
    return w.let(f"select i1 {above}, {kind} {literal(1, dtype)}, {kind} {low}")


def _absolute(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
    if dtype.kind == "uint":
        return xs[0]
    if dtype.is_float:
        return _intrinsic("fabs")(w, xs, dtype, flags)
    return w.let(f"select i1 {w.let(f'icmp slt {spelled(dtype)} {xs[0]}, 0')}, {spelled(dtype)} "
                 f"{_negative(w, xs, dtype, flags)}, {spelled(dtype)} {xs[0]}")  # fmt: skip


def _is_nan(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
    return w.let(f"fcmp uno {spelled(dtype)} {xs[0]}, {xs[0]}")


def _is_inf(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
    size = _intrinsic("fabs")(w, xs, dtype, flags)
    return w.let(f"fcmp oeq {spelled(dtype)} {size}, {literal(float('inf'), dtype)}")


def _same(w: Writer, xs: list[str], dtype: DType, flags: str) -> str:
    return xs[0]


_FUNCTIONS = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "exp", "expm1", "log", "log1p",
    "mod", "pow", "sigmoid", "sin", "sinh", "softplus", "tan", "tanh",
)  # fmt: skip
_FLOAT: dict[str, _Rule] = {
    "add": _plain("fadd", flagged=True),
    "sub": _plain("fsub", flagged=True),
    "mul": _plain("fmul", flagged=True),
    "div": _plain("fdiv"),
    "rem": _plain("frem"),
    "neg": _plain("fneg"),
    "abs": _absolute,
    "real": _same,
    "sign": _sign,
    "relu": _relu,
    "maximum": _intrinsic("maximum", "nsz"),
    "minimum": _intrinsic("minimum", "nsz"),
    "sqrt": _intrinsic("sqrt"),
    "rsqrt": _rsqrt,
    "reciprocal": _reciprocal,
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "trunc": _intrinsic("trunc"),
    "round": _intrinsic("roundeven"),
    "is_nan": _is_nan,
    "is_inf": _is_inf,
    **{name: _function(name) for name in _FUNCTIONS},
}
_WHOLE: dict[str, _Rule] = {
    "add": _plain("add"),
    "sub": _plain("sub"),
    "mul": _plain("mul"),
    "div": _divide,
    "rem": _remainder,
    "mod": _modulo,
    "pow": _power,
    "neg": _negative,
    "abs": _absolute,
    "real": _same,
    "sign": _sign,
    "relu": _relu,
    "maximum": _signed("llvm.smax", "llvm.umax"),
    "minimum": _signed("llvm.smin", "llvm.umin"),
    "bit_and": _plain("and"),
    "bit_or": _plain("or"),
    "bit_xor": _plain("xor"),
    "bit_not": _not,
    "shift_left": _shift(lambda d: "shl", keeps_sign=False),
    "shift_right": _shift(lambda d: "ashr" if d.kind == "int" else "lshr", keeps_sign=True),
}
_BOOL: dict[str, _Rule] = {
    "bit_and": _plain("and"),
    "bit_or": _plain("or"),
    "bit_xor": _plain("xor"),
    "bit_not": _not,
}
