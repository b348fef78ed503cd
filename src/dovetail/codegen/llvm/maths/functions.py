"""Functions such as exp as LLVM's text: branch-free, so that the loop vectoriser takes them into vectors.

For f32 the functions that models spend time in are written in f32, within a few units in the last place; the others are
computed in f64 and rounded once. For f64 the C library is called: right to the last bits, one element at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from dovetail.codegen.llvm.maths import tables, wide
from dovetail.codegen.llvm.maths.f64 import FUNCTIONS as f64_functions
from dovetail.codegen.llvm.maths.text import KINDS, Lines
from dovetail.ir.dtype import DType, bf16, f16, f32, f64

_MAGIC = 12582912.0
"""1.5 * 2**23: a small number added to it is rounded to a whole one, which stands in the last bits."""


def _scaled(t: Lines, x: str) -> tuple[str, str]:
    """exp(r) - 1 and the bits of a number that ends in n, for x = n ln 2 + r with r from -ln 2 / 2 to ln 2 / 2."""
    shifted = t.fma(x, tables.LOG2_E, _MAGIC)
    n = t.sub(shifted, _MAGIC)
    r = t.fma(n, -0.693145751953125, x)
    r = t.fma(n, -1.42860682030941723212e-6, r)
    p = t.polynomial(r, tables.EXP_REDUCED)
    return t.fma(p, t.mul(r, r), r), t.bits(shifted)


def _power_of_two(t: Lines, bits: str) -> str:
    """2**n of such bits; those of the magic number itself are shifted out."""
    return t.of_bits(t.integer("add", t.integer("shl", bits, 23), 127 << 23))


def exp(t: Lines, x: str) -> str:
    """The power of two in two halves, so that both ends are met. What is 0 makes no denormals: x86 crawls there."""
    nothing = t.test("olt", x, -104.0)
    bound = t.select(t.test("ogt", x, 89.0), 89.0, t.select(nothing, 0.0, x))
    p, bits = _scaled(t, bound)
    half = t.integer("lshr", bits, 1)
    power, rest = _power_of_two(t, half), _power_of_two(t, t.integer("sub", bits, half))
    return t.select(nothing, 0.0, t.mul(t.fma(p, power, power), rest))


def _exp_falling(t: Lines, x: str) -> str:
    """exp of a number that is not above 0, as weights are that are divided by their sum: denormal ones are 0."""
    nothing = t.test("olt", x, -87.0)
    p, bits = _scaled(t, t.select(nothing, 0.0, x))
    power = _power_of_two(t, bits)
    return t.select(nothing, 0.0, t.fma(p, power, power))


def _rational(t: Lines, x: str, bound: float, above: Sequence[float], below: Sequence[float]) -> str:
    """x times a quotient of polynomials in its square."""
    x = t.clamp(x, -bound, bound)
    square = t.mul(x, x)
    return t.mul(t.div(t.polynomial(square, above), t.polynomial(square, below)), x)


def erf(t: Lines, x: str) -> str:
    """The error function in f32."""
    return _rational(t, x, tables.ERF_BOUND, tables.ERF_NUMERATOR, tables.ERF_DENOMINATOR)


def tanh(t: Lines, x: str) -> str:
    """The hyperbolic tangent in f32."""
    ratio = _rational(t, x, tables.TANH_BOUND, tables.TANH_NUMERATOR, tables.TANH_DENOMINATOR)
    return t.select(t.test("ogt", t.abs(x), 8.67), t.signed(1.0, x), ratio)


def sigmoid(t: Lines, x: str) -> str:
    """exp of a negative number only, so that neither end overflows."""
    small = exp(t, t.neg(t.abs(x)))
    return t.div(t.select(t.test("olt", x, 0.0), small, 1.0), t.add(small, 1.0))


def _mod(t: Lines, x: str, y: str) -> str:
    """The remainder with the sign of y, as NumPy has it; no remainder is a zero with that sign."""
    left = t.let(f"frem {t.kind} {x}, {y}")
    differs = t.let(f"xor i1 {t.test('olt', left, 0.0)}, {t.test('olt', y, 0.0)}")
    moved = t.select(differs, t.add(left, y), left)
    return t.select(t.test("oeq", left, 0.0), t.signed(0.0, y), moved)


_Function = Callable[..., str]
_NARROW: dict[str, _Function] = {
    "exp": exp,
    "exp_falling": _exp_falling,
    "erf": erf,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "mod": _mod,
}
_IN_C = {
    "exp": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p", "sin": "sin", "cos": "cos", "tan": "tan",
    "asin": "asin", "acos": "acos", "atan": "atan", "atan2": "atan2", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "erf": "erf", "pow": "pow",
}  # fmt: skip


def _sigmoid_in_c(t: Lines, x: str) -> str:
    small = t.call("exp", t.neg(t.abs(x)))
    return t.div(t.select(t.test("olt", x, 0.0), small, 1.0), t.add(small, 1.0))


def _softplus_in_c(t: Lines, x: str) -> str:
    small = t.call("log1p", t.call("exp", t.neg(t.abs(x))))
    return t.add(t.select(t.test("olt", x, 0.0), 0.0, x), small)


def _exp_falling_in_c(t: Lines, x: str) -> str:
    return t.call("exp", x)


_COMPOSED: dict[str, _Function] = {
    "exp_falling": _exp_falling_in_c,
    "sigmoid": _sigmoid_in_c,
    "softplus": _softplus_in_c,
    "mod": _mod,
}
BINARY = frozenset({"pow", "mod", "atan2"})


def library(functions: Iterable[str], in_f64: Mapping[str, _Function] | None = None) -> str:
    """The text of the functions with these names, and declarations of those that LLVM or the C library has.

    `in_f64` has the functions of f64 where there is no C library.
    """
    declared = dict.fromkeys(_DECLARED)
    defined: list[str] = []
    constants: dict[str, None] = {}
    for name in dict.fromkeys(functions):
        if name.startswith("declare "):
            declared[name] = None
        else:
            defined.append(_defined(name, declared, constants, in_f64))
    return "\n".join([*declared, *constants, *defined])


_DECLARED: tuple[str, ...] = (
    "declare float @llvm.fma.f32(float, float, float)",
    "declare float @llvm.rint.f32(float)",
    "declare i32 @llvm.fptosi.sat.i32.f32(float)",
)


def _defined(
    full: str, declared: dict[str, None], constants: dict[str, None], in_f64: Mapping[str, _Function] | None
) -> str:
    """One function: `exp_f32` is exp of f32."""
    name, _, suffix = full.rpartition("_")
    dtype = f64 if suffix == "f64" else f32
    kind = KINDS[dtype][0]
    arguments = ["%x", "%y"] if name in BINARY else ["%x"]
    t = Lines(dtype, [], declared)
    if dtype is f64 and in_f64 is not None:
        result = in_f64[name](t, *arguments)
    elif dtype is f64:
        result = _COMPOSED[name](t, *arguments) if name in _COMPOSED else t.call(_IN_C[name], *arguments)
    elif name in _NARROW:
        result = _NARROW[name](t, *arguments)
    else:
        result = _rounded(t, name, arguments, constants)
    parameters = ", ".join(f"{kind} {x}" for x in arguments)
    body = "\n".join(t.lines)
    return f"define internal {kind} @{full}({parameters}) alwaysinline nounwind {{\n{body}\n  ret {kind} {result}\n}}"


def _rounded(t: Lines, name: str, arguments: Sequence[str], constants: dict[str, None]) -> str:
    """A function of f32 that is computed in f64."""
    constants.update(dict.fromkeys(wide.constants_of(name)))
    inner = Lines(f64, t.lines, t.used)
    widened = [t.let(f"fpext float {x} to double") for x in arguments]
    return t.let(f"fptrunc double {wide.FUNCTIONS[name](inner, *widened)} to float")


def has(op: str, dtype: DType) -> bool:
    """Whether a function is written here for elements of a dtype; narrow floats are computed in f32."""
    if dtype is f64:
        return op in _IN_C or op in _COMPOSED
    return dtype in (f16, bf16, f32) and (op in _NARROW or op in wide.FUNCTIONS)


def has_on_gpu(op: str, dtype: DType) -> bool:
    """The same without a C library. The remainder of f64 would be inexact: NVPTX divides and multiplies for it."""
    return op in f64_functions if dtype is f64 else has(op, dtype)


NAMES = tuple(sorted((_IN_C.keys() | _COMPOSED.keys()) - {"exp_falling"}))
"""The functions that are primitives."""
