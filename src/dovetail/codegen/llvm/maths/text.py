"""The text of one branch-free function of scalars, while it is written."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.scalar import literal
from dovetail.ir.dtype import DType, f32, f64

KINDS = {f32: ("float", "f32", "i32"), f64: ("double", "f64", "i64")}


class Lines:
    """The body of a function of floats; numbers may be Python's."""

    def __init__(self, dtype: DType, lines: list[str], used: dict[str, None]) -> None:
        self.dtype = dtype
        self.kind, self.suffix, self.whole = KINDS[dtype]
        self.lines = lines
        self.used = used

    def let(self, instruction: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def number(self, x: str | float) -> str:
        return x if isinstance(x, str) else literal(x, self.dtype)

    def _binary(self, instruction: str, x: str | float, y: str | float) -> str:
        return self.let(f"{instruction} {self.kind} {self.number(x)}, {self.number(y)}")

    def add(self, x: str | float, y: str | float) -> str:
        return self._binary("fadd", x, y)

    def sub(self, x: str | float, y: str | float) -> str:
        return self._binary("fsub", x, y)

    def mul(self, x: str | float, y: str | float) -> str:
        return self._binary("fmul", x, y)

    def div(self, x: str | float, y: str | float) -> str:
        return self._binary("fdiv", x, y)

    def neg(self, x: str) -> str:
        return self.let(f"fneg {self.kind} {x}")

    def call(self, name: str, *xs: str | float) -> str:
        """A function of floats of this type that LLVM or the C library has."""
        self.used[f"declare {self.kind} @{name}({', '.join([self.kind] * len(xs))})"] = None
        return self.let(f"call {self.kind} @{name}({', '.join(f'{self.kind} {self.number(x)}' for x in xs)})")

    def intrinsic(self, name: str, *xs: str | float) -> str:
        return self.call(f"llvm.{name}.{self.suffix}", *xs)

    def fma(self, x: str | float, y: str | float, z: str | float) -> str:
        return self.intrinsic("fma", x, y, z)

    def abs(self, x: str) -> str:
        return self.intrinsic("fabs", x)

    def sqrt(self, x: str) -> str:
        return self.intrinsic("sqrt", x)

    def signed(self, x: str | float, like: str) -> str:
        """x with the sign of another."""
        return self.intrinsic("copysign", x, like)

    def test(self, how: str, x: str | float, y: str | float) -> str:
        return self._binary(f"fcmp {how}", x, y)

    def select(self, where: str, x: str | float, y: str | float) -> str:
        return self.let(f"select i1 {where}, {self.kind} {self.number(x)}, {self.kind} {self.number(y)}")

    def clamp(self, x: str, low: float, high: float) -> str:
        """NaN stays."""
        x = self.select(self.test("olt", x, low), low, x)
        return self.select(self.test("ogt", x, high), high, x)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Horner's scheme, the highest power first."""
        total = self.number(coefficients[0])
        for c in coefficients[1:]:
            total = self.fma(total, x, c)
        return total

    def bits(self, x: str) -> str:
        return self.let(f"bitcast {self.kind} {x} to {self.whole}")

    def of_bits(self, x: str) -> str:
        return self.let(f"bitcast {self.whole} {x} to {self.kind}")

    def integer(self, instruction: str, x: str, y: str | int) -> str:
        return self.let(f"{instruction} {self.whole} {x}, {y}")
