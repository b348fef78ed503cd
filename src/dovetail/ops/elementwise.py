"""Elementwise primitives: operands broadcast, every dtype is computed in its own type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import ALL as EVERY
from dovetail.ir.dtype import BY_NAME, FLOATS, INEXACT, INTEGERS, NUMBERS, DType, bool_, c64, f32
from dovetail.ir.fact import Facts
from dovetail.ir.leaf import scalar_of
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ops import rules
from dovetail.ops.conversion import EIGHT_BIT_FLOATS, Rounding, converted
from dovetail.ops.gradient import NOT_FLOAT, STEPS, BinaryPull, Constant, Parts, Refused, UnaryPull
from dovetail.ops.primitive import Array, DTypeAttr, Primitive, family, primitive
from dovetail.ops.special import erf as erf_of
from dovetail.ops.special import wide


def _costing(flops: int) -> Callable[[Type, tuple[Type, ...], Mapping[str, Any]], Size]:
    return lambda result, operands, attrs: rules.tensor(result).count * flops


def _elementwise(
    name: str,
    meaning: Callable[..., Any],
    allowed: Sequence[DType],
    doc: str,
    pull: UnaryPull | BinaryPull | Constant,
    *,
    flops: int = 1,
    commutative: bool = False,
    result: DType | None = None,
) -> Primitive:
    return Primitive(
        name,
        meaning,
        rules.elementwise(allowed, result=result),
        flops=_costing(flops),
        commutative=commutative,
        elementwise=True,
        pull=pull,
        doc=doc,
    )


def _divide(x: Array, y: Array) -> Array:
    if x.dtype.kind not in "iu":
        return np.divide(x, y)
    # Without its remainder x is a multiple of y, and nothing is left to round. NumPy gives 0 where y is 0.
    return np.floor_divide(x - np.fmod(x, y), y)


def _power(x: Array, y: Array) -> Array:
    if x.dtype.kind not in "iu":
        return np.power(x, y)
    positive = np.power(x, np.maximum(y, np.zeros_like(y)))
    if x.dtype.kind == "u":
        return positive
    # The inverse of an integer is cut to 0, but for 1 and -1.
    inverse = np.where(x == 1, 1, np.where(x == -1, 1 - 2 * (y % 2), 0)).astype(x.dtype)
    return np.where(y < 0, inverse, positive)


def _rounded_once(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Chain steps that are computed in a wide type, so that narrow types round only the result."""

    def meaning(x: Array) -> Array:
        return np.asarray(function(x.astype(wide(x.dtype)))).astype(x.dtype)

    return meaning


def _sigmoid(x: Array) -> Array:
    # The branch that never overflows: exp of a negative number only.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _reciprocal(x: Array) -> Array:
    return 1 / x


def _maximum(x: Array, y: Array) -> Array:
    """np.maximum leaves open which of two zeros is the larger; here 0.0 is larger than -0.0."""
    larger = np.maximum(x, y)
    return np.where((x == 0) & (y == 0), x + y, larger) if larger.dtype.kind not in "iub" else larger


def _minimum(x: Array, y: Array) -> Array:
    """np.minimum, with -0.0 smaller than 0.0."""
    smaller = np.minimum(x, y)
    return np.where((x == 0) & (y == 0), -(-x + -y), smaller) if smaller.dtype.kind not in "iub" else smaller


def _relu(x: Array) -> Array:
    return _maximum(x, np.zeros((), x.dtype))


_REAL = (*INTEGERS, *FLOATS)
_BITS = (*INTEGERS, bool_)


def _pow_pull(g: Value, y: Value, x: Value, n: Value) -> Parts:
    """Constant exponents are common and have the simple form; 0 ** 0 and log(0) give no NaN."""
    number = scalar_of(n)
    if number == 2.0:
        return g * (x * 2.0), None
    slope = g * (n * pow_(x, n - 1.0))
    if number is not None:
        return (slope if number != 0 else None), None
    return where(equal(n, 0.0), 0.0, slope), where(equal(x, 0.0), 0.0, g * (y * log(where(equal(x, 0.0), 1.0, x))))


def _div_pull(g: Value, y: Value, a: Value, b: Value) -> Parts:
    """`g / b`, `-((g / b) * y)`; g * (1 / b) of a number b, which costs a tenth: a gradient is rounded down nowhere."""
    number = scalar_of(b)
    if isinstance(number, float) and _SMALLEST <= abs(number) <= 1 / _SMALLEST:
        return g * (1.0 / number), None
    return g / b, -(g / b * y)


def _extreme_pull(wins: Callable[[Value, Value], Value]) -> BinaryPull:
    """Return a pull in which the larger or smaller operand has all of the gradient; equal ones share it."""

    def share(g: Value, mine: Value, other: Value) -> Value:
        return where(wins(mine, other), g, where(equal(mine, other), g * 0.5, 0.0))

    return lambda g, y, a, b: (share(g, a, b), share(g, b, a))


def _atan2_pull(g: Value, y: Value, a: Value, b: Value) -> Parts:
    scaled = g / (a * a + b * b)
    return scaled * b, -(scaled * a)


_SMALLEST = 2.0**-14
"""Numbers from here to its inverse have an inverse in every float dtype."""
_TWO_OVER_ROOT_PI = 2.0 / math.sqrt(math.pi)

add = _elementwise("add", np.add, NUMBERS, "x + y", lambda g, y, a, b: (g, g), commutative=True)
sub = _elementwise("sub", np.subtract, NUMBERS, "x - y", lambda g, y, a, b: (g, -g))
mul = _elementwise("mul", np.multiply, NUMBERS, "x * y", lambda g, y, a, b: (g * b, g * a), commutative=True)
div = _elementwise(
    "div",
    _divide,
    NUMBERS,
    "x / y; integers are truncated towards zero, and x / 0 is 0 for them",
    _div_pull,
)
mod = _elementwise(
    "mod",
    np.mod,
    _REAL,
    "Remainder with the sign of y; x mod 0 is 0 for integers",
    lambda g, y, a, b: (g, -(g * floor(a / b))),
)
rem = _elementwise(
    "rem",
    np.fmod,
    _REAL,
    "Remainder with the sign of x; 0 for integers divided by 0",
    lambda g, y, a, b: (g, -(g * trunc(a / b))),
)
pow_ = _elementwise(
    "pow", _power, NUMBERS, "x to the power y; integers wrap, and are cut to 0 where y < 0", _pow_pull, flops=10
)
maximum = _elementwise(
    "maximum",
    _maximum,
    _REAL,
    "The larger of both; NaN wins, and 0.0 is larger than -0.0",
    _extreme_pull(lambda a, b: greater(a, b)),
    commutative=True,
)
minimum = _elementwise(
    "minimum",
    _minimum,
    _REAL,
    "The smaller of both; NaN wins, and -0.0 is smaller than 0.0",
    _extreme_pull(lambda a, b: less(a, b)),
    commutative=True,
)
atan2 = _elementwise("atan2", np.arctan2, FLOATS, "Angle of the point (y, x) = (first, second)", _atan2_pull, flops=10)

neg = _elementwise("neg", np.negative, NUMBERS, "-x; integers wrap", lambda g, y, x: (-g,))
sign = _elementwise("sign", _rounded_once(np.sign), _REAL, "-1, 0 or 1; NaN for NaN", STEPS)
# By its result, so that the operand need not be kept.
relu = _elementwise("relu", _relu, _REAL, "max(x, 0); NaN stays", lambda g, y, x: (where(greater(y, 0.0), g, 0.0),))
exp = _elementwise("exp", np.exp, INEXACT, "e to the power x", lambda g, y, x: (g * y,), flops=10)
expm1 = _elementwise("expm1", np.expm1, FLOATS, "exp(x) - 1, exact near 0", lambda g, y, x: (g * (y + 1.0),), flops=10)
log = _elementwise("log", np.log, INEXACT, "Natural logarithm", lambda g, y, x: (g / x,), flops=10)
log1p = _elementwise("log1p", np.log1p, FLOATS, "log(1 + x), exact near 0", lambda g, y, x: (g / (x + 1.0),), flops=10)
sqrt = _elementwise("sqrt", np.sqrt, INEXACT, "Square root", lambda g, y, x: (g * 0.5 / y,), flops=4)
rsqrt = _elementwise(
    "rsqrt", _rounded_once(_rsqrt), INEXACT, "1 / sqrt(x)", lambda g, y, x: (g * -0.5 * (y * y * y),), flops=4
)
reciprocal = _elementwise(
    "reciprocal", _rounded_once(_reciprocal), INEXACT, "1 / x", lambda g, y, x: (-(g * (y * y)),), flops=4
)
sin = _elementwise("sin", np.sin, FLOATS, "Sine", lambda g, y, x: (g * cos(x),), flops=10)
cos = _elementwise("cos", np.cos, FLOATS, "Cosine", lambda g, y, x: (-(g * sin(x)),), flops=10)
tan = _elementwise("tan", np.tan, FLOATS, "Tangent", lambda g, y, x: (g * (y * y + 1.0),), flops=10)
asin = _elementwise("asin", np.arcsin, FLOATS, "Inverse sine", lambda g, y, x: (g * rsqrt(1.0 - x * x),), flops=10)
acos = _elementwise("acos", np.arccos, FLOATS, "Inverse cosine", lambda g, y, x: (-(g * rsqrt(1.0 - x * x)),), flops=10)
atan = _elementwise("atan", np.arctan, FLOATS, "Inverse tangent", lambda g, y, x: (g / (x * x + 1.0),), flops=10)
sinh = _elementwise("sinh", np.sinh, FLOATS, "Hyperbolic sine", lambda g, y, x: (g * cosh(x),), flops=10)
cosh = _elementwise("cosh", np.cosh, FLOATS, "Hyperbolic cosine", lambda g, y, x: (g * sinh(x),), flops=10)
tanh = _elementwise("tanh", np.tanh, FLOATS, "Hyperbolic tangent", lambda g, y, x: (g * (1.0 - y * y),), flops=10)
asinh = _elementwise(
    "asinh", np.arcsinh, FLOATS, "Inverse hyperbolic sine", lambda g, y, x: (g * rsqrt(x * x + 1.0),), flops=10
)
acosh = _elementwise(
    "acosh", np.arccosh, FLOATS, "Inverse hyperbolic cosine", lambda g, y, x: (g * rsqrt(x * x - 1.0),), flops=10
)
atanh = _elementwise(
    "atanh", np.arctanh, FLOATS, "Inverse hyperbolic tangent", lambda g, y, x: (g / (1.0 - x * x),), flops=10
)
erf = _elementwise(
    "erf", erf_of, FLOATS, "Error function", lambda g, y, x: (g * (exp(-(x * x)) * _TWO_OVER_ROOT_PI),), flops=10
)
sigmoid = _elementwise(
    "sigmoid", _rounded_once(_sigmoid), FLOATS, "1 / (1 + exp(-x))", lambda g, y, x: (g * (y * (1.0 - y)),), flops=10
)
softplus = _elementwise(
    "softplus", _rounded_once(_softplus), FLOATS, "log(1 + exp(x))", lambda g, y, x: (g * sigmoid(x),), flops=20
)
floor = _elementwise("floor", np.floor, FLOATS, "Largest integer not above x", STEPS)
ceil = _elementwise("ceil", np.ceil, FLOATS, "Smallest integer not below x", STEPS)
trunc = _elementwise("trunc", np.trunc, FLOATS, "Towards zero", STEPS)
round_ = _elementwise("round", np.rint, FLOATS, "Nearest integer, halves to even", STEPS)

bit_and = _elementwise("bit_and", np.bitwise_and, _BITS, "Bitwise and", NOT_FLOAT, commutative=True)
bit_or = _elementwise("bit_or", np.bitwise_or, _BITS, "Bitwise or", NOT_FLOAT, commutative=True)
bit_xor = _elementwise("bit_xor", np.bitwise_xor, _BITS, "Bitwise exclusive or", NOT_FLOAT, commutative=True)
bit_not = _elementwise("bit_not", np.invert, _BITS, "Bitwise not", NOT_FLOAT)
shift_left = _elementwise(
    "shift_left", np.left_shift, INTEGERS, "x shifted left by y bits; 0 where y is no place in x", NOT_FLOAT
)
shift_right = _elementwise(
    "shift_right",
    np.right_shift,
    INTEGERS,
    "x shifted right by y bits, keeping the sign; 0 or -1 where y is no place in x",
    NOT_FLOAT,
)

_COMPARED = (*NUMBERS, bool_)
_ORDERED = (*_REAL, bool_)
equal = _elementwise("equal", np.equal, _COMPARED, "x == y", NOT_FLOAT, commutative=True, result=bool_)
not_equal = _elementwise("not_equal", np.not_equal, _COMPARED, "x != y", NOT_FLOAT, commutative=True, result=bool_)
less = _elementwise("less", np.less, _ORDERED, "x < y", NOT_FLOAT, result=bool_)
less_equal = _elementwise("less_equal", np.less_equal, _ORDERED, "x <= y", NOT_FLOAT, result=bool_)
greater = _elementwise("greater", np.greater, _ORDERED, "x > y", NOT_FLOAT, result=bool_)
greater_equal = _elementwise("greater_equal", np.greater_equal, _ORDERED, "x >= y", NOT_FLOAT, result=bool_)
is_nan = _elementwise("is_nan", np.isnan, INEXACT, "Whether x is not a number", NOT_FLOAT, result=bool_)
is_inf = _elementwise("is_inf", np.isinf, INEXACT, "Whether x is infinite", NOT_FLOAT, result=bool_)

_COMPLEX = Refused("gradients of complex numbers are not there", "compute with real and imaginary parts as floats")


def _part(facts: Facts, x: Type) -> Type:
    of = rules.tensor(x)
    dtype = rules.one_dtype(facts, [of], NUMBERS)
    return TensorType(f32 if dtype is c64 else dtype, of.shape)


def _abs_pull(g: Value, y: Value, x: Value) -> Parts:
    return (g * sign(x),)


@primitive(_part, elementwise=True, pull=_abs_pull, name="abs")
def abs_(x: Array) -> Array:
    """Absolute value; integers wrap, the modulus of a complex number is f32."""
    return np.abs(x)


def _real_pull(g: Value, y: Value, x: Value) -> Parts:
    return (g,)


@primitive(_part, elementwise=True, pull=_real_pull)
def real(x: Array) -> Array:
    """The real part of a complex number, f32; any other number is its own."""
    return np.real(x)


def _imag(facts: Facts, x: Type) -> Type:
    of = rules.tensor(x)
    rules.one_dtype(facts, [of], (c64,))
    return TensorType(f32, of.shape)


@primitive(_imag, elementwise=True, pull=_COMPLEX)
def imag(x: Array) -> Array:
    """The imaginary part of a complex number, f32."""
    return np.imag(x)


@primitive(rules.elementwise((f32,), result=c64), elementwise=True, pull=_COMPLEX, name="complex")
def complex_(x: Array, y: Array) -> Array:
    """The complex number x + iy."""
    shape = np.broadcast_shapes(x.shape, y.shape)
    # Not x + 1j * y: that makes NaN of an infinite part.
    result = np.empty(shape, np.result_type(x.dtype, np.complex64))
    result.real, result.imag = x, y
    return result


def _where(facts: Facts, condition: Type, x: Type, y: Type) -> Type:
    selector, yes, no = rules.tensor(condition), rules.tensor(x), rules.tensor(y)
    rules.one_dtype(facts, [selector], (bool_,))
    dtype = rules.one_dtype(facts, [yes, no], EVERY)
    return TensorType(dtype, rules.broadcast(facts, [selector.shape, yes.shape, no.shape]))


def _where_pull(g: Value, y: Value, condition: Value, a: Value, b: Value) -> Parts:
    return None, where(condition, g, 0.0), where(condition, 0.0, g)


@primitive(_where, elementwise=True, pull=_where_pull)
def where(condition: Array, x: Array, y: Array) -> Array:
    """x where the condition holds, y elsewhere."""
    return np.where(condition, x, y)


def _cast(facts: Facts, x: Type, *, dtype: DType) -> Type:
    return TensorType(dtype, rules.tensor(x).shape)


def _cast_pull(g: Value, y: Value, x: Value, *, dtype: DType) -> Parts:
    return (cast(g, dtype=x.dtype),)


@primitive(_cast, elementwise=True, pull=_cast_pull)
def cast(x: Array, *, dtype: DTypeAttr) -> Array:
    """The same numbers in another dtype: floats are cut towards zero and kept in range, integers wrap.

    NaN becomes 0 as an integer, bool is != 0, and the imaginary part is dropped where there is no place for it.
    Floats of 8 bits and less are kept in range, powers of two (f8e8m0) are rounded up, and integers of 4 and 2
    bits wrap whatever they come from.
    """
    return converted(x, dtype)


def _cast_f8(facts: Facts, x: Type, *, dtype: DType, saturate: bool, rounding: Rounding) -> Type:
    if dtype not in EIGHT_BIT_FLOATS:
        names = ", ".join(d.name for d in EIGHT_BIT_FLOATS)
        raise TypeRuleError(f"{facts.op} to {dtype.name}", hint=f"it makes {names}; cast makes the others")
    return TensorType(dtype, rules.tensor(x).shape)


_NARROW = Refused("floats of 8 bits have no gradient", "train in f32 or bf16, and cast to 8 bits after training")


@primitive(_cast_f8, elementwise=True, pull=_NARROW)
def cast_f8(x: Array, *, dtype: DTypeAttr, saturate: bool = True, rounding: Rounding = "up") -> Array:
    """The same numbers as floats of 8 bits: beyond the range the last number, or what overflow is without saturate.

    Powers of two (f8e8m0) are rounded as asked, the other types to the nearest.
    """
    return converted(x, dtype, saturate=saturate, rounding=rounding)


def _bitcast(facts: Facts, x: Type, *, source: str, target: str) -> Type:
    of = rules.tensor(x)
    if of.dtype.name != source or target not in BY_NAME or BY_NAME[target].bits != of.dtype.bits:
        raise TypeRuleError(
            f"the bits of {of.dtype.name} as {target}, taken for {source}", hint="both types have the same width"
        )
    return TensorType(BY_NAME[target], of.shape)


@primitive(_bitcast, elementwise=True, pull=Constant("bits are not numbers"))
def bitcast(x: Array, *, source: str, target: str) -> Array:
    """The bits of one dtype read as another of the same width."""
    # The types stand by name: where floats are computed wider, the bits are still those of the declared type.
    bits = converted(x, BY_NAME[source])
    read = BY_NAME[target]
    return bits.view(np.uint8) != 0 if read is bool_ else bits.view(read.numpy)


FAMILY = family(globals())


__all__ = [
    "abs_", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bit_and", "bit_not", "bit_or",
    "bit_xor", "bitcast", "cast", "cast_f8", "ceil", "complex_", "cos", "cosh", "div", "equal", "erf", "exp",
    "expm1", "floor", "greater", "greater_equal", "imag", "is_inf", "is_nan", "less", "less_equal", "log", "log1p",
    "maximum", "minimum", "mod", "mul", "neg", "not_equal", "pow_", "real", "reciprocal", "relu", "rem", "round_",
    "rsqrt", "shift_left", "shift_right", "sigmoid", "sign", "sin", "sinh", "softplus", "sqrt", "sub", "tan",
    "tanh", "trunc", "where",
]  # fmt: skip
