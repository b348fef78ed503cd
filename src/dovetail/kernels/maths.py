"""Functions such as exp as LLVM's text: branch-free, so that the loop vectoriser takes them into vectors.

Written for f32, with relative errors of a few units in the last place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.ir.dtype import DType, bf16, f16, f32
from dovetail.kernels.llvm_scalar import literal


def _number(x: float) -> str:
    return literal(x, f32)


class _Lines:
    """The body of one function of f32."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def let(self, instruction: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def fma(self, x: str, y: str, z: str) -> str:
        return self.let(f"call float @llvm.fma.f32(float {x}, float {y}, float {z})")

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Horner's scheme, the highest power first."""
        found = _number(coefficients[0])
        for c in coefficients[1:]:
            found = self.fma(found, x, _number(c))
        return found

    def clamp(self, x: str, low: float, high: float) -> str:
        """NaN stays."""
        below = self.let(f"fcmp olt float {x}, {_number(low)}")
        x = self.let(f"select i1 {below}, float {_number(low)}, float {x}")
        above = self.let(f"fcmp ogt float {x}, {_number(high)}")
        return self.let(f"select i1 {above}, float {_number(high)}, float {x}")

    def mul(self, x: str, y: str) -> str:
        return self.let(f"fmul float {x}, {y}")

    def add(self, x: str, y: str) -> str:
        return self.let(f"fadd float {x}, {y}")


def _exp_of(t: _Lines, x: str) -> str:
    """2**n times a polynomial on [-ln 2 / 2, ln 2 / 2]; the power of two in two halves, so that both ends are met."""
    bound = t.clamp(x, -104.0, 89.0)
    n = t.let(f"call float @llvm.rint.f32(float {t.mul(bound, _number(1.44269504088896341))})")
    r = t.fma(n, _number(-0.693145751953125), bound)
    r = t.fma(n, _number(-1.42860682030941723212e-6), r)
    p = t.polynomial(
        r, [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1]
    )
    p = t.add(t.fma(p, t.mul(r, r), r), _number(1.0))
    whole = t.let(f"call i32 @llvm.fptosi.sat.i32.f32(float {n})")
    half = t.let(f"ashr i32 {whole}, 1")
    rest = t.let(f"sub i32 {whole}, {half}")
    for power in (half, rest):
        bits = t.let(f"shl i32 {t.let(f'add i32 {power}, 127')}, 23")
        p = t.mul(p, t.let(f"bitcast i32 {bits} to float"))
    return p


def _exp(t: _Lines, x: str) -> str:
    return _exp_of(t, x)


_ERF_ABOVE = [
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05, -7.34990630326855e-04,
    -2.95459980854025e-03, -1.60960333262415e-02,
]  # fmt: skip
_ERF_BELOW = [
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
]
_TANH_ABOVE = [
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05,
    6.37261928875436e-04, 4.89352455891786e-03,
]  # fmt: skip
_TANH_BELOW = [1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03]


def _rational(t: _Lines, x: str, bound: float, above: Sequence[float], below: Sequence[float]) -> str:
    """x times a quotient of polynomials in its square."""
    x = t.clamp(x, -bound, bound)
    square = t.mul(x, x)
    top = t.mul(x, t.polynomial(square, above))
    return t.let(f"fdiv float {top}, {t.polynomial(square, below)}")


def _erf(t: _Lines, x: str) -> str:
    return _rational(t, x, 4.0, _ERF_ABOVE, _ERF_BELOW)


def _tanh(t: _Lines, x: str) -> str:
    return _rational(t, x, 7.90531110763549805, _TANH_ABOVE, _TANH_BELOW)


def _sigmoid(t: _Lines, x: str) -> str:
    negative = t.let(f"fneg float {t.clamp(x, -88.0, 104.0)}")
    return t.let(f"fdiv float {_number(1.0)}, {t.add(_exp_of(t, negative), _number(1.0))}")


_BODIES = {"exp": _exp, "erf": _erf, "tanh": _tanh, "sigmoid": _sigmoid}
_DECLARED: tuple[str, ...] = (
    "declare float @llvm.fma.f32(float, float, float)",
    "declare float @llvm.rint.f32(float)",
    "declare i32 @llvm.fptosi.sat.i32.f32(float)",
)


def library(functions: Iterable[str]) -> str:
    """The text of the functions with these names, and declarations of those that LLVM has itself."""
    declared = dict.fromkeys(_DECLARED)
    defined: list[str] = []
    for name in dict.fromkeys(functions):
        if name.startswith("declare "):
            declared[name] = None
            continue
        t = _Lines()
        result = _BODIES[name.removesuffix("_f32")](t, "%x")
        defined.append(
            f"define internal float @{name}(float %x) alwaysinline nounwind {{\n"
            + "\n".join(t.lines)
            + f"\n  ret float {result}\n}}"
        )
    return "\n".join([*declared, *defined])


def has(op: str, dtype: DType) -> bool:
    """Whether a function is written here for elements of a dtype; narrow floats are computed in f32."""
    return op in _BODIES and dtype in (f16, bf16, f32)
