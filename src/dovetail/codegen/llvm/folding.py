"""Constant folding of integers: known operands, and the results of instructions on them."""

from __future__ import annotations

from dovetail.codegen.llvm.handles import I64, Int


def i64(x: Int) -> I64:
    """The handle of an integer."""
    return I64(str(x)) if isinstance(x, int) else x


def known(x: Int) -> int | None:
    """The integer that an operand is, where it is known."""
    if isinstance(x, int):
        return x
    return int(x) if x.lstrip("-").isdigit() else None


def folded(operation: str, x: int, y: int) -> int | None:
    """Fold an instruction on known integers; None where it is not folded."""
    match operation:
        case "add":
            return x + y
        case "sub":
            return x - y
        case "mul":
            return x * y
        case "sdiv" | "udiv" if x >= 0 and y > 0:
            return x // y
        case "srem" | "urem" if x >= 0 and y > 0:
            return x % y
        case _:
            return None
