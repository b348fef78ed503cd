"""The exact remainder of f32 where there is no C library: NVPTX divides and multiplies for `frem`, and rounds."""

from __future__ import annotations

import re

from dovetail.codegen.llvm.maths.text import Lines
from dovetail.ir.dtype import f64

NAME = "exact_remainder_f32"
_BITS = 28
"""Bits of the quotient that a step takes: times the 24 bits of a divisor they fit f64 without rounding."""
_STEPS = 10
"""Between the largest and the smallest f32 are 277 powers of two."""
_FREM = re.compile(r"frem (?:\w+ )*float ([^,\n]+), ([^,\n]+)$", re.MULTILINE)


def _remainder(t: Lines, x: str, y: str) -> str:
    """x mod y with the sign of x, by a long division in f64: every quotient is cut, every step is exact."""
    rest, divisor = t.abs(x), t.abs(y)
    for step in reversed(range(_STEPS)):
        scaled = t.mul(divisor, 2.0 ** (_BITS * step))
        quotient = t.intrinsic("trunc", t.div(rest, scaled))
        rest = t.fma(t.neg(quotient), scaled, rest)
    # Nothing goes into infinity, which is 0 times infinity here.
    is_endless = t.let(f"and i1 {t.test('oeq', divisor, float('inf'))}, {t.test('one', t.abs(x), float('inf'))}")
    return t.signed(t.select(is_endless, t.abs(x), rest), x)


def _defined() -> str:
    used: dict[str, None] = {}
    t = Lines(f64, [], used)
    wide = [t.let(f"fpext float {x} to double") for x in ("%x", "%y")]
    rounded = t.let(f"fptrunc double {_remainder(t, *wide)} to float")
    body = "\n".join(t.lines)
    head = f"define internal float @{NAME}(float %x, float %y) nounwind {{"
    return "\n".join([*used, f"{head}\n{body}\n  ret float {rounded}\n}}"])


def with_exact_remainders(text: str) -> str:
    """A module whose remainders of f32 are exact."""
    replaced, count = _FREM.subn(lambda at: f"call float @{NAME}(float {at[1]}, float {at[2]})", text)
    if not count:
        return text
    declared = [line for line in _defined().splitlines() if line.startswith("declare ")]
    defined = "\n".join([line for line in _defined().splitlines() if not line.startswith("declare ")])
    return "\n".join([replaced, *[line for line in declared if line not in replaced], defined]) + "\n"


__all__ = ["with_exact_remainders"]
