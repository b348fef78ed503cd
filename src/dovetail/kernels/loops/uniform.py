"""What all threads of a block have in common: indices that its number alone decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    Call,
    Expr,
    Extent,
    Loop,
    Name,
    Set,
    Statement,
    ThreadIndex,
)


class Uniform:
    """Expressions of a body that are the same for all threads of a block, without its names."""

    def __init__(self, body: Sequence[Statement], known: Sequence[str] = ()) -> None:
        self.set: dict[str, list[Expr]] = {}
        self.blocks: set[str] = set()
        self.known = known
        """Names that are the same for all blocks."""
        for s in everything(body):
            if isinstance(s, Set):
                self.set.setdefault(s.name, []).append(s.value)
            elif isinstance(s, Loop) and s.kind == "block":
                self.blocks.add(s.variable)

    def of(self, expr: Expr) -> Expr | None:
        """The expression in terms of the number of the block; None where threads differ."""
        match expr:
            case Extent() | ThreadIndex(kind="block"):
                return expr
            case Name(name) if name in self.known:
                return expr
            case Name(name) if name in self.blocks:
                return ThreadIndex("block")
            case Name(name) if name in self.set:
                return self._named(name)
            case Call(op, operands, dtype):
                uniform = [self.of(x) for x in operands]
                known = [x for x in uniform if x is not None]
                return Call(op, tuple(known), dtype) if len(known) == len(uniform) else None
            case _:
                return None

    def most(self, expr: Expr) -> int | None:
        """What an index is at most, where that is a remainder or a number."""
        match expr:
            case Extent(int(size)):
                return size
            case Call("rem", (_, Extent(int(size)))):
                return size - 1
            case Name(name) if name in self.set:
                values = self.set.pop(name)
                bounds = [self.most(x) for x in values]
                self.set[name] = values
                known = [x for x in bounds if x is not None]
                return max(known) if len(known) == len(bounds) else None
            case _:
                return None

    def _named(self, name: str) -> Expr | None:
        """What a name is, where everything that it is set to is the same; one that changes is set to itself."""
        values = self.set.pop(name)
        first, *others = [self.of(x) for x in values]
        self.set[name] = values
        return first if all([other == first for other in others]) else None


def at_block(expr: Expr, block: int) -> int | None:
    """The value of a uniform expression in one block, where it consists of sums, products and remainders."""
    return number_of(expr, {}, block)


def number_of(expr: Expr, known: Mapping[str, int], block: int | None = None) -> int | None:
    """The value of sums, products, quotients and remainders of known names, and of the number of a block if given."""
    match expr:
        case Extent(int(size)):
            return size
        case Name(name):
            return known.get(name)
        case ThreadIndex(kind="block"):
            return block
        case Call(op, (x, y), _):
            left, right = number_of(x, known, block), number_of(y, known, block)
            if left is None or right is None:
                return None
            match op:
                case "add":
                    return left + right
                case "mul":
                    return left * right
                case "div" if right > 0:
                    return left // right
                case "rem" if right > 0:
                    return left % right
                case _:
                    return None
        case _:
            return None


__all__ = ["Uniform", "at_block", "number_of"]
