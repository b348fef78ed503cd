"""Sizes known later: polynomials over symbols, with floor division and maximum as atoms.

A size is a plain `int` wherever it is known; `Dim` is what is left. The normal form is unique for
polynomials, so that two sizes that are equal by algebra are equal by `==`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.errors import BindError, GraphError, SizeLimitError


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size with a name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Compound:
    """A function of sizes that is no polynomial."""

    kind: Literal["floordiv", "max", "min"]
    left: Size
    right: Size
    depth: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        depth = 1 + max(_depth(self.left), _depth(self.right))
        if depth > _DEEPEST:
            raise SizeLimitError(f"a size of {depth} nested divisions or extremes", hint="bind some of its symbols")
        object.__setattr__(self, "depth", depth)

    def __str__(self) -> str:
        return f"{self.kind}({self.left}, {self.right})"


Atom: TypeAlias = Symbol | Compound
Monomial: TypeAlias = tuple[Atom, ...]


class Dim:
    """A polynomial with integer coefficients that is not a constant."""

    __slots__ = ("_hash", "terms")

    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Dim) and self.terms == other.terms)

    def __add__(self, other: Size) -> Size:
        return _collect([*self.terms, *_terms(other)])

    def __radd__(self, other: int) -> Size:
        return self + other

    def __neg__(self) -> Size:
        return _collect([(m, -c) for m, c in self.terms])

    def __sub__(self, other: Size) -> Size:
        return self + (-other)

    def __rsub__(self, other: int) -> Size:
        return (-self) + other

    def __mul__(self, other: Size) -> Size:
        terms = _terms(other)
        if len(self.terms) * len(terms) > _MOST_PRODUCTS:
            raise _too_long(len(self.terms) * len(terms))
        return _collect([(_join(m, n), c * d) for m, c in self.terms for n, d in terms])

    def __rmul__(self, other: int) -> Size:
        return self * other

    def __floordiv__(self, other: Size) -> Size:
        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Size:
        return floordiv(other, self)

    def __mod__(self, other: Size) -> Size:
        return self - floordiv(self, other) * other

    def __rmod__(self, other: int) -> Size:
        return other - floordiv(other, self) * self

    def __str__(self) -> str:
        return _spell(self.terms)

    def __repr__(self) -> str:
        return f"Dim({self})"


Size: TypeAlias = int | Dim

_DEEPEST = 24
_MOST_TERMS = 256
_MOST_PRODUCTS = 4096
MOST_TOKENS = 512
LARGEST_SIZE = 2**63 - 1


def _depth(size: Size) -> int:
    if isinstance(size, int):
        return 0
    return max((a.depth for monomial, _ in size.terms for a in monomial if isinstance(a, Compound)), default=0)


def _too_long(terms: int) -> GraphError:
    return GraphError(f"a size of {terms} terms", hint="name the sum or bind some of its symbols first")


def symbol(name: str) -> Dim:
    if not _NAME.fullmatch(name):
        raise GraphError(f"{name!r} is not a name for a size", hint=_NAME_HINT)
    return Dim((((Symbol(name),), 1),))


def floordiv(left: Size, right: Size) -> Size:
    """left // right, exact where the division is exact by algebra, and with whole multiples of a number outside."""
    if right == 0:
        raise GraphError(f"the size {left} is divided by zero", hint="check the shapes that lead here")
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    exact = divide(left, right)
    if exact is not None:
        return exact
    inner = _quotient_and_rest(left)
    if inner is not None and isinstance(right, int) and right > 0:
        # (x // a + c) // b is (x + a c) // (a b): chains of strides stay one division.
        (x, a), c = inner
        if a * right <= _LARGEST_DIVISOR:
            return floordiv(x + a * c, a * right)
    whole = _collect([(m, c // right) for m, c in _terms(left)]) if isinstance(right, int) and right > 0 else 0
    if whole != 0:
        return whole + floordiv(left - whole * right, right)
    return _collect([((Compound("floordiv", left, right),), 1)])


_LARGEST_DIVISOR = 2**31
"""Divisions are merged up to here, so that numbers do not grow without end."""


def _quotient_and_rest(size: Size) -> tuple[tuple[Size, int], int] | None:
    """x, a and c of a size x // a + c with integers a above 0 and c; None where it is another."""
    terms = [(monomial, coefficient) for monomial, coefficient in _terms(size) if monomial]
    rest = sum(coefficient for monomial, coefficient in _terms(size) if not monomial)
    if len(terms) != 1 or terms[0][1] != 1 or len(terms[0][0]) != 1:
        return None
    atom = terms[0][0][0]
    if isinstance(atom, Symbol) or atom.kind != "floordiv" or not isinstance(atom.right, int) or atom.right <= 0:
        return None
    return (atom.left, atom.right), rest


def divide(left: Size, right: Size) -> Size | None:
    """Return the quotient when `right` divides `left` by algebra, else None."""
    if right == 0:
        return None
    if left == right and left != 0:
        return 1
    divisor = _terms(right)
    if len(divisor) == 1:
        (monomial, coefficient) = divisor[0]
        return _divide_by_term(_terms(left), monomial, coefficient)
    return _divide_by_polynomial(left, right)


def largest(left: Size, right: Size) -> Size:
    return _extreme("max", left, right)


def smallest(left: Size, right: Size) -> Size:
    return _extreme("min", left, right)


def _extreme(kind: Literal["max", "min"], left: Size, right: Size) -> Size:
    apart = left - right
    if isinstance(apart, int):
        return left if (apart >= 0) == (kind == "max") else right
    return _collect([((Compound(kind, *sorted((left, right), key=str)),), 1)])


def at_least(size: Size) -> int | None:
    """Return a lower bound that holds for every non-negative binding of the symbols, or None."""
    if isinstance(size, int):
        return size
    bound = 0
    for monomial, coefficient in size.terms:
        if not monomial:
            bound += coefficient
        elif coefficient < 0 or any(isinstance(a, Compound) for a in monomial):
            return None
    return bound


def check_size(size: Size, longest: int = MOST_TOKENS) -> None:
    """Raise unless the size is small enough to be written and read: its numbers, its names, its length."""
    tokens = 0
    pending: list[Size] = [size]
    while pending:
        tokens += 1
        for monomial, coefficient in _terms(pending.pop()):
            if abs(coefficient) > LARGEST_SIZE:
                raise SizeLimitError("a size beyond 63 bits", hint="check the sizes that lead here")
            tokens += 2 + 2 * len(monomial)
            for atom in monomial:
                if isinstance(atom, Compound):
                    tokens += 3
                    pending += [atom.left, atom.right]
                elif not _NAME.fullmatch(atom.name):
                    raise GraphError(f"{atom.name!r} is not a name for a size", hint=_NAME_HINT)
            if tokens > longest:
                raise SizeLimitError("a size that is too long to write", hint="bind some of its symbols")


def symbols(size: Size) -> frozenset[str]:
    """Return the names that a size depends on."""
    return frozenset(_symbol_names(size))


def _symbol_names(size: Size) -> Iterator[str]:
    pending: list[Size] = [size]
    while pending:
        for monomial, _ in _terms(pending.pop()):
            for atom in monomial:
                if isinstance(atom, Symbol):
                    yield atom.name
                else:
                    pending += [atom.left, atom.right]


def substitute(size: Size, binding: Mapping[str, Size]) -> Size:
    """Return the size with its symbols replaced; symbols without a binding stay."""
    if isinstance(size, int) or not binding:
        return size
    return _with_atoms(size, lambda atom: _substitute_atom(atom, binding))


def without(size: Size, known: Mapping[Compound, Size]) -> Size:
    """Return the size with functions of sizes replaced by what they are known to be; outermost ones first."""
    if isinstance(size, int) or not known:
        return size
    return _with_atoms(size, lambda atom: _known_atom(atom, known))


def _with_atoms(size: Dim, instead: Callable[[Atom], Size]) -> Size:
    total: Size = 0
    for monomial, coefficient in size.terms:
        product: Size = coefficient
        for atom in monomial:
            product = product * instead(atom)
        total = total + product
    return total


def _substitute_atom(atom: Atom, binding: Mapping[str, Size]) -> Size:
    if isinstance(atom, Symbol):
        bound = binding.get(atom.name)
        return _collect([((atom,), 1)]) if bound is None else bound
    return COMPOUND[atom.kind](substitute(atom.left, binding), substitute(atom.right, binding))


def _known_atom(atom: Atom, known: Mapping[Compound, Size]) -> Size:
    if isinstance(atom, Symbol):
        return _collect([((atom,), 1)])
    replacement = known.get(atom)
    return (
        COMPOUND[atom.kind](without(atom.left, known), without(atom.right, known))
        if replacement is None
        else replacement
    )


def compounds(size: Size) -> Iterator[Compound]:
    """Yield the functions of sizes in a size."""
    pending: list[Size] = [size]
    while pending:
        for monomial, _ in _terms(pending.pop()):
            for atom in monomial:
                if isinstance(atom, Compound):
                    yield atom
                    pending += [atom.left, atom.right]


COMPOUND: dict[str, Callable[[Size, Size], Size]] = {"floordiv": floordiv, "max": largest, "min": smallest}


def evaluate(size: Size, binding: Mapping[str, Size]) -> int:
    """Return the number of a size under a full binding."""
    result = substitute(size, binding)
    if isinstance(result, int):
        return result
    missing = ", ".join(sorted(symbols(result)))
    raise BindError(
        f"the size {size} needs a value for {missing}", hint=f"bind {missing}, for example by an input's shape"
    )


def total(sizes: Iterable[Size]) -> Size:
    """Return the sum of sizes."""
    return _collect([term for size in sizes for term in _terms(size)])


def product(sizes: tuple[Size, ...]) -> Size:
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(size, Dim):
        return size.terms
    return (((), size),) if size else ()


def _join(left: Monomial, right: Monomial) -> Monomial:
    return tuple(sorted(left + right, key=str)) if left and right else left or right


def _collect(terms: list[tuple[Monomial, int]]) -> Size:
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    kept = [(m, c) for m, c in total.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    if len(kept) > _MOST_TERMS:
        raise _too_long(len(kept))
    # Highest degree first reads like algebra: 2*s + 1. One term, as most sizes have, is not spelled in vain.
    if len(kept) > 1:
        kept.sort(key=lambda term: (-len(term[0]), tuple(map(str, term[0]))))
    return Dim(tuple(kept))


def _divide_by_term(terms: tuple[tuple[Monomial, int], ...], monomial: Monomial, coefficient: int) -> Size | None:
    quotient: list[tuple[Monomial, int]] = []
    for factors, c in terms:
        left = list(factors)
        if c % coefficient:
            return None
        for atom in monomial:
            if atom not in left:
                return None
            left.remove(atom)
        quotient.append((tuple(left), c // coefficient))
    return _collect(quotient)


def _divide_by_polynomial(left: Size, right: Size) -> Size | None:
    """Long division by leading terms; None where a remainder is left."""
    lead, coefficient = _terms(right)[0]
    quotient: Size = 0
    rest = left
    for _ in range(64):
        if rest == 0:
            return quotient
        step = _divide_by_term(_terms(rest)[:1], lead, coefficient)
        if step is None:
            return None
        quotient = quotient + step
        rest = rest - step * right
    return None


def _spell(terms: tuple[tuple[Monomial, int], ...]) -> str:
    text = ""
    for monomial, coefficient in terms:
        factors = [*([str(abs(coefficient))] if abs(coefficient) != 1 or not monomial else []), *map(str, monomial)]
        sign = "-" if coefficient < 0 else "+" if text else ""
        text += sign + "*".join(factors)
    return text


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME_HINT = "use letters, digits and _, not a digit first"
