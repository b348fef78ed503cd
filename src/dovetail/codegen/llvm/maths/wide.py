"""Functions of f32 computed in f64: the series of the textbook, long enough that rounding to f32 is what is left.

No argument is special where f64 has room for it: what is tiny, huge or denormal in f32 is an ordinary f64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from dovetail.codegen.llvm.maths.text import Lines

_MAGIC = 6755399441055744.0
"""1.5 * 2**52: a small number added to it is rounded to a whole one, which stands in the last bits."""
_MAGIC_BITS = 0x4338000000000000
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
_LOG_TWO = math.log(2.0)
_INF, _NAN = math.inf, math.nan


def _power(t: Lines, x: str) -> tuple[str, str]:
    """exp(r) - 1 and 2**n of x = n ln 2 + r. What is beyond f32 is cut to numbers that are still beyond it."""
    bound = t.clamp(x, -160.0, 130.0)
    shifted = t.fma(bound, 1.0 / _LOG_TWO, _MAGIC)
    n = t.sub(shifted, _MAGIC)
    r = t.fma(n, -0.6931471805598903, bound)  # 2**-44 and above, so that n times it is exact
    r = t.fma(n, -5.497923018708371e-14, r)
    p = t.polynomial(r, [1.0 / math.factorial(k) for k in range(11, 0, -1)])
    whole = t.integer("sub", t.bits(shifted), _MAGIC_BITS)
    return t.mul(p, r), t.of_bits(t.integer("shl", t.integer("add", whole, 1023), 52))


def _exp(t: Lines, x: str) -> str:
    p, power = _power(t, x)
    return t.fma(p, power, power)


def _expm1(t: Lines, x: str) -> str:
    p, power = _power(t, x)
    return t.fma(p, power, t.sub(power, 1.0))


def log_of_positive(t: Lines, x: str) -> str:
    """e ln 2 + log m for x = 2**e m with m from the root of 1/2 to that of 2."""
    bits = t.bits(x)
    e = t.integer("ashr", t.integer("sub", bits, _ROOT_HALF_BITS), 52)
    m = t.of_bits(t.integer("sub", bits, t.integer("shl", e, 52)))
    s = t.div(t.sub(m, 1.0), t.add(m, 1.0))
    series = t.polynomial(t.mul(s, s), [2.0 / (2 * k + 1) for k in range(10, -1, -1)])
    count = t.sub(t.of_bits(t.integer("add", e, _MAGIC_BITS)), _MAGIC)
    return t.fma(count, _LOG_TWO, t.mul(s, series))


def log_ends(t: Lines, x: str, log: str) -> str:
    """The logarithm where x is 0, negative, infinite or NaN."""
    log = t.select(t.test("oeq", x, 0.0), -_INF, log)
    log = t.select(t.test("oeq", x, _INF), _INF, log)
    return t.select(t.test("uge", x, 0.0), t.select(t.test("uno", x, x), x, log), _NAN)


def _log(t: Lines, x: str) -> str:
    return log_ends(t, x, log_of_positive(t, x))


def _log1p(t: Lines, x: str) -> str:
    """log(1 + x) and what 1 + x was rounded by."""
    u = t.add(x, 1.0)
    lost = t.div(t.sub(x, t.sub(u, 1.0)), u)
    return log_ends(t, u, t.add(log_of_positive(t, u), lost))


def _softplus(t: Lines, x: str) -> str:
    small = _log1p(t, _exp(t, t.neg(t.abs(x))))
    return t.add(t.select(t.test("olt", x, 0.0), 0.0, x), small)


def _sinh(t: Lines, x: str) -> str:
    e = _expm1(t, t.abs(x))
    return t.signed(t.mul(t.add(e, t.div(e, t.add(e, 1.0))), 0.5), x)


def _cosh(t: Lines, x: str) -> str:
    e = _exp(t, t.abs(x))
    return t.mul(t.add(e, t.div(1.0, e)), 0.5)


def _asinh(t: Lines, x: str) -> str:
    size = t.abs(x)
    square = t.mul(size, size)
    inside = t.add(size, t.div(square, t.add(t.sqrt(t.add(square, 1.0)), 1.0)))
    return t.signed(t.select(t.test("oeq", size, _INF), _INF, _log1p(t, inside)), x)


def _acosh(t: Lines, x: str) -> str:
    less, more = t.sub(x, 1.0), t.add(x, 1.0)
    result = _log1p(t, t.add(less, t.sqrt(t.mul(less, more))))
    return t.select(t.test("olt", x, 1.0), _NAN, result)


def _atanh(t: Lines, x: str) -> str:
    size = t.abs(x)
    return t.signed(t.mul(_log1p(t, t.div(t.mul(size, 2.0), t.sub(1.0, size))), 0.5), x)


_EIGHTH = math.tan(math.pi / 8)


def _angle(t: Lines, above: str, below: str) -> str:
    """atan(above / below), both positive or 0, not both 0 or infinite: one division, then a series on [-t, t]."""
    steep = t.test("ogt", above, t.mul(below, 1.0 / _EIGHTH))
    middle = t.test("ogt", above, t.mul(below, _EIGHTH))
    top = t.select(steep, t.neg(below), t.select(middle, t.sub(above, below), above))
    under = t.select(steep, above, t.select(middle, t.add(above, below), below))
    q = t.div(top, under)
    z = t.mul(q, q)
    series = t.polynomial(z, [(-1.0) ** k / (2 * k + 1) for k in range(15, 0, -1)])
    near = t.fma(t.mul(q, z), series, q)
    return t.add(near, t.select(steep, math.pi / 2, t.select(middle, math.pi / 4, 0.0)))


def _atan(t: Lines, x: str) -> str:
    size = t.clamp(t.abs(x), 0.0, 1e300)
    return t.signed(_angle(t, size, t.number(1.0)), x)


def _atan2(t: Lines, y: str, x: str) -> str:
    tall, wide = t.abs(y), t.abs(x)
    both = t.let(f"and i1 {t.test('oeq', tall, _INF)}, {t.test('oeq', wide, _INF)}")
    none = t.let(f"and i1 {t.test('oeq', tall, 0.0)}, {t.test('oeq', wide, 0.0)}")
    even = t.select(both, 1.0, tall), t.select(both, 1.0, t.select(none, 1.0, wide))
    angle = _angle(t, t.clamp(even[0], 0.0, 1e200), t.clamp(even[1], 0.0, 1e200))
    # A division of an ordinary number by infinity: 1e200 is as good, but 0 is what it gives.
    angle = t.select(t.test("oeq", even[1], _INF), 0.0, angle)
    back = t.let(f"icmp slt i64 {t.bits(x)}, 0")
    angle = t.select(back, t.sub(math.pi, angle), angle)
    return t.select(t.test("uno", x, y), _NAN, t.signed(angle, y))


def _asin(t: Lines, x: str) -> str:
    size = t.abs(x)
    return t.signed(_angle(t, size, t.sqrt(t.mul(t.sub(1.0, size), t.add(size, 1.0)))), x)


def _acos(t: Lines, x: str) -> str:
    size = t.abs(x)
    angle = _angle(t, t.sqrt(t.mul(t.sub(1.0, size), t.add(size, 1.0))), size)
    return t.select(t.test("olt", x, 0.0), t.sub(math.pi, angle), angle)


def _pow(t: Lines, x: str, y: str) -> str:
    """exp(y log |x|), negative where x is and y is odd; NaN where x is negative and y is no integer."""
    size = t.abs(x)
    power = _exp(t, t.mul(y, log_ends(t, size, log_of_positive(t, size))))
    power = t.select(t.test("oeq", size, 1.0), 1.0, power)
    whole = t.test("oeq", t.intrinsic("trunc", y), y)
    half = t.mul(y, 0.5)
    is_odd = t.let(f"and i1 {whole}, {t.test('une', t.intrinsic('trunc', half), half)}")
    power = t.select(is_odd, t.signed(power, x), power)
    fits = t.let(f"or i1 {whole}, {t.test('oeq', size, _INF)}")
    broken = t.let(f"and i1 {t.test('olt', x, 0.0)}, {t.let(f'xor i1 {fits}, true')}")
    power = t.select(broken, _NAN, power)
    power = t.select(t.test("uno", x, y), _NAN, power)
    always = t.let(f"or i1 {t.test('oeq', y, 0.0)}, {t.test('oeq', x, 1.0)}")
    return t.select(always, 1.0, power)


@cache
def _two_over_pi(bits: int) -> int:
    """2 / pi in fixed point, by Machin's formula in integers."""
    scale = 1 << (bits + 64)

    def inverse_tangent(n: int) -> int:
        total, power, k = 0, scale // n, 1
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power //= n * n
            k += 2
        return total

    pi = 4 * (4 * inverse_tangent(5) - inverse_tangent(239))
    return (2 * scale << bits) // pi


_BITS = 400
_TABLE = "@two_over_pi"


@cache
def _turns() -> str:
    """For each exponent of f32: 2 / pi times a unit of the last place, modulo 4, as 2 + 94 bits in two words."""
    words: list[int] = []
    for exponent in range(256):
        unit = max(exponent, 1) - 150
        shift = _BITS - 94 - unit
        window = (_two_over_pi(_BITS) >> shift if shift >= 0 else _two_over_pi(_BITS) << -shift) & ((1 << 96) - 1)
        words += [window >> 32, window & 0xFFFFFFFF]
    listed = ", ".join(f"i64 {w - (1 << 64) if w >> 63 else w}" for w in words)
    return f"{_TABLE} = internal constant [{len(words)} x i64] [{listed}]"


def _reduced(t: Lines, x: str) -> tuple[str, str]:
    """|x| as a number of quarter turns and what is left, from -pi / 4 to pi / 4, whatever its size."""
    narrow = t.let(f"bitcast float {t.let(f'fptrunc double {t.abs(x)} to float')} to i32")
    exponent = t.let(f"lshr i32 {narrow}, 23")
    hidden = t.let(f"select i1 {t.let(f'icmp eq i32 {exponent}, 0')}, i32 0, i32 8388608")
    digits = t.let(f"or i32 {t.let(f'and i32 {narrow}, 8388607')}, {hidden}")
    m = t.let(f"zext i32 {digits} to i64")
    at = t.let(f"zext i32 {exponent} to i64")
    words = [
        t.let(f"load i64, ptr {t.let(f'getelementptr inbounds [2 x i64], ptr {_TABLE}, i64 {at}, i64 {i}')}, align 8")
        for i in range(2)
    ]
    low = t.integer("lshr", t.integer("mul", m, words[1]), 32)
    turn = t.integer("add", t.integer("mul", m, words[0]), low)
    quarter = t.integer("lshr", t.integer("add", turn, 1 << 61), 62)
    rest = t.integer("sub", turn, t.integer("shl", quarter, 62))
    r = t.mul(t.let(f"sitofp i64 {rest} to double"), math.pi / 2 * 2.0**-62)
    small = t.test("olt", t.abs(x), math.pi / 4)
    return quarter, t.select(small, t.abs(x), r)


def _sine_of(t: Lines, r: str) -> str:
    z = t.mul(r, r)
    series = t.polynomial(z, [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(7, 0, -1)])
    return t.fma(t.mul(r, z), series, r)


def _cosine_of(t: Lines, r: str) -> str:
    return t.polynomial(t.mul(r, r), [(-1.0) ** k / math.factorial(2 * k) for k in range(7, -1, -1)])


def _wave(t: Lines, x: str, ahead: int) -> str:
    """sin(|x| + ahead * pi / 2); infinity has no sine."""
    quarter, r = _reduced(t, x)
    quarter = t.integer("add", quarter, ahead)
    is_odd = t.let(f"icmp ne i64 {t.integer('and', quarter, 1)}, 0")
    wave = t.select(is_odd, _cosine_of(t, r), _sine_of(t, r))
    turned = t.let(f"icmp ne i64 {t.integer('and', quarter, 2)}, 0")
    wave = t.select(turned, t.neg(wave), wave)
    return t.select(t.test("ult", t.abs(x), _INF), t.select(t.test("uno", x, x), x, wave), _NAN)


def _sin(t: Lines, x: str) -> str:
    wave = _wave(t, x, 0)
    return t.select(t.let(f"icmp slt i64 {t.bits(x)}, 0"), t.neg(wave), wave)


def _cos(t: Lines, x: str) -> str:
    return _wave(t, x, 1)


def _tan(t: Lines, x: str) -> str:
    return t.div(_sin(t, x), _cos(t, x))


FUNCTIONS: dict[str, Callable[..., str]] = {
    "log": _log, "log1p": _log1p, "expm1": _expm1, "softplus": _softplus, "sinh": _sinh, "cosh": _cosh,
    "asinh": _asinh, "acosh": _acosh, "atanh": _atanh, "atan": _atan, "atan2": _atan2, "asin": _asin, "acos": _acos,
    "sin": _sin, "cos": _cos, "tan": _tan, "pow": _pow,
}  # fmt: skip


def constants_of(name: str) -> tuple[str, ...]:
    """Tables that a function reads."""
    return (_turns(),) if name in ("sin", "cos", "tan") else ()
