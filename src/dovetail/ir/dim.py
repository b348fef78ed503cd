"""Sizes known later: polynomials over symbols, with floor division and maximum as atoms.

A size is a plain `int` wherever it is known; `Dim` is what is left. The normal form is unique for
polynomials, so that two sizes that are equal by algebra are equal by `==`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dovetail.errors import BindError, GraphError


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
        product = [(_join(m, n), c * d) for m, c in self.terms for n, d in _terms(other)]
        return _collect(product)

    def __rmul__(self, other: int) -> Size:
        return self * other

    def __floordiv__(self, other: Size) -> Size:
        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Size:
        return floordiv(other, self)

    def __mod__(self, other: Size) -> Size:
        return self - floordiv(self, other) * other

    def __str__(self) -> str:
        return _spell(self.terms)

    def __repr__(self) -> str:
        return f"Dim({self})"


Size: TypeAlias = int | Dim


def symbol(name: str) -> Dim:
    if not _NAME.fullmatch(name):
        raise GraphError(f"{name!r} is not a name for a size", hint="use letters, digits and _, not a digit first")
    return Dim((((Symbol(name),), 1),))


def floordiv(left: Size, right: Size) -> Size:
    """left // right, exact where the division is exact by algebra."""
    if right == 0:
        raise GraphError(f"the size {left} is divided by zero", hint="check the shapes that lead here")
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    exact = divide(left, right)
    return exact if exact is not None else _collect([((Compound("floordiv", left, right),), 1)])


def divide(left: Size, right: Size) -> Size | None:
    """The quotient when `right` divides `left` by algebra, else None."""
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
    """A lower bound that holds for every non-negative binding of the symbols, or None."""
    if isinstance(size, int):
        return size
    bound = 0
    for monomial, coefficient in size.terms:
        if not monomial:
            bound += coefficient
        elif coefficient < 0 or any(isinstance(a, Compound) for a in monomial):
            return None
    return bound


def symbols(size: Size) -> frozenset[str]:
    """The names that a size depends on."""
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
    """The size with its symbols replaced; symbols without a binding stay."""
    if isinstance(size, int) or not binding:
        return size
    total: Size = 0
    for monomial, coefficient in size.terms:
        product: Size = coefficient
        for atom in monomial:
            product = product * _substitute_atom(atom, binding)
        total = total + product
    return total


def _substitute_atom(atom: Atom, binding: Mapping[str, Size]) -> Size:
    if isinstance(atom, Symbol):
        bound = binding.get(atom.name)
        return _collect([((atom,), 1)]) if bound is None else bound
    return _COMPOUND[atom.kind](substitute(atom.left, binding), substitute(atom.right, binding))


_COMPOUND: dict[str, Callable[[Size, Size], Size]] = {"floordiv": floordiv, "max": largest, "min": smallest}


def evaluate(size: Size, binding: Mapping[str, Size]) -> int:
    """The number that a size is under a full binding."""
    result = substitute(size, binding)
    if isinstance(result, int):
        return result
    missing = ", ".join(sorted(symbols(result)))
    raise BindError(f"the size {size} needs a value for {missing}", hint=f"bind {missing}, for example by an input's shape")


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
    # Highest degree first reads like algebra: 2*s + 1.
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
_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z0-9_]*)|([-+*(),]))")


def parse_size(text: str) -> Size:
    """The size that `str` printed: integers, names, + - *, floordiv(a, b), max(a, b), min(a, b)."""
    tokens: list[str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or len(tokens) > 512:
            raise GraphError(f"{text[:80]!r} is not a size", hint="write sizes as 4, s, 2*s+1 or floordiv(s, 2)")
        tokens.append(found.group().strip())
        at = found.end()
    reader = _SizeReader(tokens, text)
    size = reader.sum()
    reader.finish()
    return size


class _SizeReader:
    """Recursive descent over the tokens of one size; nesting is bounded by the token limit."""

    def __init__(self, tokens: list[str], text: str) -> None:
        self.tokens = tokens
        self.text = text
        self.at = 0
        self.depth = 0

    def sum(self) -> Size:
        self.depth += 1
        if self.depth > 32:
            raise self.error()
        negative = self.take("-")
        total = self.product()
        if negative:
            total = -total
        while (sign := self.peek()) in ("+", "-"):
            self.at += 1
            term = self.product()
            total = total + term if sign == "+" else total - term
        self.depth -= 1
        return total

    def product(self) -> Size:
        total = self.factor()
        while self.take("*"):
            total = total * self.factor()
        return total

    def factor(self) -> Size:
        token = self.peek()
        self.at += 1
        if token is None:
            raise self.error()
        if token.isdigit():
            if len(token) > 20:
                raise self.error()
            return int(token)
        if token in _COMPOUND and self.take("("):
            left = self.sum()
            self.need(",")
            right = self.sum()
            self.need(")")
            return _COMPOUND[token](left, right)
        if token == "(":
            inner = self.sum()
            self.need(")")
            return inner
        return symbol(token)

    def peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, token: str) -> bool:
        if self.peek() == token:
            self.at += 1
            return True
        return False

    def need(self, token: str) -> None:
        if not self.take(token):
            raise self.error()

    def finish(self) -> None:
        if self.at != len(self.tokens):
            raise self.error()

    def error(self) -> GraphError:
        return GraphError(f"{self.text[:80]!r} is not a size", hint="write sizes as 4, s, 2*s+1 or floordiv(s, 2)")
