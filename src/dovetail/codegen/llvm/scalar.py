"""Primitives of scalars as LLVM's instructions, type by type. Each is what its NumPy meaning says, bit for bit where
integers are concerned and to the last few bits for functions such as exp."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dovetail.codegen.llvm.casts import anchor, bitcast, cast, low_bits
from dovetail.codegen.llvm.types import NARROW, InstructionWriter, is_compiled, literal, spelled, stored, suffix
from dovetail.errors import UnsupportedError
from dovetail.ir.dtype import ALL, DType, bool_, f16, f32
from dovetail.kernels.loops.policy import ScalarSupport


def apply(w: InstructionWriter, op: str, operands: list[str], dtypes: list[DType], result: DType, flags: str) -> str:
    """One primitive on scalars; `flags` go to sums and products of floats."""
    if op == "cast":
        return cast(w, operands[0], dtypes[0], result)
    if op == "anchor":
        return anchor(w, operands[0], operands[1])
    if op == "low_bits":
        return low_bits(w, operands[0], operands[1], result)
    if op == "bitcast":
        return bitcast(w, operands[0], dtypes[0], result)
    if op == "where":
        return w.let(f"select i1 {operands[0]}, {spelled(result)} {operands[1]}, {spelled(result)} {operands[2]}")
    dtype = dtypes[0]
    if dtype in NARROW and not (dtype is f16 and op in _BITS_ONLY):
        wide = [cast(w, x, d, f32) for x, d in zip(operands, dtypes, strict=True)]
        computed = apply(w, op, wide, [f32] * len(wide), f32 if result.is_float else result, flags)
        return cast(w, computed, f32, result) if result.is_float else computed
    if op in _COMPARED:
        return _compare(w, op, operands, dtype)
    table = _FLOAT if dtype.is_float else _BOOL if dtype is bool_ else _WHOLE
    rule = table.get(op)
    if rule is None:
        raise UnsupportedError(f"{op} of {dtype.name} in compiled code", hint="it runs on the host")
    return rule(w, operands, dtype, flags)


def support(has_function: Callable[[str, DType], bool], inexact: Collection[tuple[str, DType]] = ()) -> ScalarSupport:
    """What compiled code has: the instructions of this file, and the functions of floats that a library has.

    `inexact` names the instructions that a processor does not have as they are meant, with their dtypes.
    """
    by_dtype: dict[DType, frozenset[str]] = {}
    for dtype in ALL:
        if is_compiled(dtype):
            table = _FLOAT if dtype.is_float else _BOOL if dtype is bool_ else _WHOLE
            names = {"cast", "where", "bitcast", *_COMPARED, *table}
            missing = {n for n in _LIBRARY if not has_function(n, dtype)} if dtype.is_float else set[str]()
            by_dtype[dtype] = frozenset(names - missing - {n for n, of in inexact if of is dtype})
    return ScalarSupport(by_dtype)


_BITS_ONLY = {"neg", "abs", "real"}
_COMPARED = {
    "equal": ("oeq", "eq", "eq"),
    "not_equal": ("une", "ne", "ne"),
    "less": ("olt", "slt", "ult"),
    "less_equal": ("ole", "sle", "ule"),
    "greater": ("ogt", "sgt", "ugt"),
    "greater_equal": ("oge", "sge", "uge"),
}


def _compare(w: InstructionWriter, op: str, operands: list[str], dtype: DType) -> str:
    on_floats, on_signed, on_unsigned = _COMPARED[op]
    x, y = operands
    if dtype.is_float:
        return w.let(f"fcmp {on_floats} {spelled(dtype)} {x}, {y}")
    return w.let(f"icmp {on_signed if dtype.kind == 'int' else on_unsigned} {spelled(dtype)} {x}, {y}")


_Rule = Callable[[InstructionWriter, list[str], DType, str], str]


def _plain(instruction: str, *, flagged: bool = False) -> _Rule:
    def rule(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
        return w.let(f"{instruction}{f' {flags}' if flagged and flags else ''} {spelled(dtype)} {', '.join(xs)}")

    return rule


def _intrinsic(name: str, free: str = "") -> _Rule:
    """`free` is what LLVM may take for granted: nsz leaves open which of two zeros is the larger, as reductions do."""

    def rule(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
        kind = spelled(dtype)
        full = f"llvm.{name}.{suffix(dtype)}"
        w.use(f"declare {kind} @{full}({', '.join([kind] * len(xs))})")
        return w.let(f"call {f'{free} ' if free else ''}{kind} @{full}({', '.join(f'{kind} {x}' for x in xs)})")

    return rule


def _function(name: str) -> _Rule:
    """A function of the library of scalar functions; `kernels.maths` has its text."""

    def rule(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
        kind = spelled(dtype)
        full = f"{name}_{suffix(dtype)}"
        w.use(full)
        return w.let(f"call {kind} @{full}({', '.join(f'{kind} {x}' for x in xs)})")

    return rule


def _signed(on_signed: str, on_unsigned: str) -> _Rule:
    def rule(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
        chosen = on_signed if dtype.kind == "int" else on_unsigned
        if chosen.startswith("llvm."):
            return _intrinsic(chosen.removeprefix("llvm."))(w, xs, dtype, flags)
        return w.let(f"{chosen} {spelled(dtype)} {', '.join(xs)}")

    return rule


def _reciprocal(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
    return w.let(f"fdiv {spelled(dtype)} {literal(1, dtype)}, {xs[0]}")


def _rsqrt(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
    return _reciprocal(w, [_intrinsic("sqrt")(w, xs, dtype, flags)], dtype, flags)


def _relu(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
    kind, zero = spelled(dtype), literal(0, dtype)
    # The test fails for NaN, which stays, and holds for -0.0, which becomes 0.0.
    test = f"fcmp ole {kind} {xs[0]}, {zero}" if dtype.is_float else f"icmp slt {kind} {xs[0]}, {zero}"
    if dtype.kind == "uint":
        return xs[0]
    return w.let(f"select i1 {w.let(test)}, {kind} {zero}, {kind} {xs[0]}")


def _divide(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
    """Cut towards zero; what NumPy gives for a division by 0 is 0, and the lowest number by -1 wraps."""
    return _safe_division("sdiv" if dtype.kind == "int" else "udiv", w, xs, dtype)


def _remainder(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
    return _safe_division("srem" if dtype.kind == "int" else "urem", w, xs, dtype)


def _safe_division(instruction: str, w: InstructionWriter, xs: list[str], dtype: DType) -> str:
    """A division by 0 gives 0, and none traps."""
    kind = spelled(dtype)
    x, y = xs
    none = w.let(f"icmp eq {kind} {y}, 0")
    divisor = w.let(f"select i1 {none}, {kind} 1, {kind} {y}")
    if dtype.kind != "int":
        quotient = w.let(f"{instruction} {kind} {x}, {divisor}")
        return w.let(f"select i1 {none}, {kind} 0, {kind} {quotient}")
    flip = w.let(f"icmp eq {kind} {divisor}, -1")
    safe = w.let(f"select i1 {flip}, {kind} 1, {kind} {divisor}")
    quotient = w.let(f"{instruction} {kind} {x}, {safe}")
    turned = w.let(f"sub {kind} 0, {x}") if instruction == "sdiv" else "0"
    quotient = w.let(f"select i1 {flip}, {kind} {turned}, {kind} {quotient}")
    return w.let(f"select i1 {none}, {kind} 0, {kind} {quotient}")


def _modulo(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
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
    def rule(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
        kind, bits = spelled(dtype), dtype.bits
        inside = w.let(f"icmp ult {kind} {xs[1]}, {bits}")
        by = w.let(f"select i1 {inside}, {kind} {xs[1]}, {kind} 0")
        shifted = w.let(f"{instruction(dtype)} {kind} {xs[0]}, {by}")
        away = "0"
        if keeps_sign and dtype.kind == "int":
            away = w.let(f"ashr {kind} {xs[0]}, {bits - 1}")
        return w.let(f"select i1 {inside}, {kind} {shifted}, {kind} {away}")

    return rule


def _power(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
    """Squares and products, a bit of the exponent at a time; they wrap. Below 0 it is the inverse, cut to a whole."""
    kind = spelled(dtype)
    x, y = xs
    power, base = "1", x
    for bit in range(dtype.bits - (dtype.kind == "int")):
        taken = w.let(f"trunc {kind} {w.let(f'lshr {kind} {y}, {bit}')} to i1")
        power = w.let(f"select i1 {taken}, {kind} {w.let(f'mul {kind} {power}, {base}')}, {kind} {power}")
        base = w.let(f"mul {kind} {base}, {base}")
    if dtype.kind != "int":
        return power
    odd = w.let(f"trunc {kind} {y} to i1")
    turned = w.let(f"select i1 {odd}, {kind} -1, {kind} 1")
    is_one, is_minus = w.let(f"icmp eq {kind} {x}, 1"), w.let(f"icmp eq {kind} {x}, -1")
    inverse = w.let(f"select i1 {is_minus}, {kind} {turned}, {kind} 0")
    inverse = w.let(f"select i1 {is_one}, {kind} 1, {kind} {inverse}")
    return w.let(f"select i1 {w.let(f'icmp slt {kind} {y}, 0')}, {kind} {inverse}, {kind} {power}")


def _negative(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
    return w.let(f"sub {spelled(dtype)} 0, {xs[0]}")


def _not(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
    return w.let(f"xor {spelled(dtype)} {xs[0]}, {'true' if dtype is bool_ else '-1'}")


def _sign(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
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


def _absolute(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
    if dtype.kind == "uint":
        return xs[0]
    if dtype.is_float:
        return _intrinsic("fabs")(w, xs, dtype, flags)
    return w.let(f"select i1 {w.let(f'icmp slt {spelled(dtype)} {xs[0]}, 0')}, {spelled(dtype)} "
                 f"{_negative(w, xs, dtype, flags)}, {spelled(dtype)} {xs[0]}")  # fmt: skip


def _is_nan(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
    return w.let(f"fcmp uno {spelled(dtype)} {xs[0]}, {xs[0]}")


def _is_inf(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
    size = _intrinsic("fabs")(w, xs, dtype, flags)
    return w.let(f"fcmp oeq {spelled(dtype)} {size}, {literal(float('inf'), dtype)}")


def _same(w: InstructionWriter, xs: list[str], dtype: DType, flags: str) -> str:
    return xs[0]


FUNCTIONS = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "exp", "expm1", "log", "log1p",
    "mod", "pow", "sigmoid", "sin", "sinh", "softplus", "tan", "tanh",
)  # fmt: skip
"""Primitives of floats that are functions of `codegen.llvm.maths` rather than instructions."""
_LIBRARY = (*FUNCTIONS, "exp_falling")
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
    "maximum": _intrinsic("maximum"),
    "minimum": _intrinsic("minimum"),
    "fold_maximum": _intrinsic("maximum", "nsz"),
    "fold_minimum": _intrinsic("minimum", "nsz"),
    "sqrt": _intrinsic("sqrt"),
    "rsqrt": _rsqrt,
    "reciprocal": _reciprocal,
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "trunc": _intrinsic("trunc"),
    "round": _intrinsic("roundeven"),
    "is_nan": _is_nan,
    "is_inf": _is_inf,
    **{name: _function(name) for name in FUNCTIONS},
    "exp_falling": _function("exp_falling"),
    "fma": _intrinsic("fma"),
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
    "fold_maximum": _signed("llvm.smax", "llvm.umax"),
    "fold_minimum": _signed("llvm.smin", "llvm.umin"),
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


__all__ = [
    "FUNCTIONS",
    "NARROW",
    "InstructionWriter",
    "apply",
    "cast",
    "is_compiled",
    "literal",
    "spelled",
    "stored",
    "support",
]
