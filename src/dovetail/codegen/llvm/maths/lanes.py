"""Functions such as erf on vectors: the text that `maths` writes for scalars, with vectors for numbers."""

from __future__ import annotations

from dovetail.codegen.llvm.maths import functions as maths
from dovetail.codegen.llvm.maths.text import Lines
from dovetail.codegen.llvm.simd import VectorText
from dovetail.ir.dtype import f32


class Lanes(Lines):
    """Instructions of a function while it is written, on its vectors of f32."""

    def __init__(self, t: VectorText) -> None:
        super().__init__(f32, [], t.used)
        self.text = t
        self.kind, self.suffix, self.whole = t.kind, f"v{t.lanes}f32", t.whole

    def let(self, instruction: str) -> str:
        return self.text.let(instruction)

    def number(self, x: str | float) -> str:
        return x if isinstance(x, str) else self.text.number(x)

    def select(self, where: str, x: str | float, y: str | float) -> str:
        return self.text.select(where, self.number(x), self.number(y))


def erf(t: VectorText, x: str) -> str:
    """The error function of every lane."""
    return maths.erf(Lanes(t), x)


def tanh(t: VectorText, x: str) -> str:
    """The hyperbolic tangent of every lane, 1 where it rounds to it."""
    return maths.tanh(Lanes(t), x)
