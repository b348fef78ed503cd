"""Products summed over axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.shared.matmul import matmul_or_dot
from dovetail.ir.dim import Size, product
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("MatMul")
def matmul(n: Node, x: Value, y: Value) -> Value:
    """Matrix product over the last two axes; a vector is a row on the left, a column on the right."""
    if x.rank == 0 or y.rank == 0:
        raise n.malformed("a product with a number", hint="use Mul")
    return matmul_or_dot(x, y)


@rule("Gemm")
def gemm(
    n: Node,
    a: Value,
    b: Value,
    c: Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,
    transB: bool = False,
    broadcast: bool = True,  # before opset 7; without it c has the shape of the result, which needs no stretching
) -> Value:
    """alpha * a @ b + beta * c, with a and b optionally transposed."""
    left = ops.permute(a, order=(-1, -2)) if transA else a
    right = ops.permute(b, order=(-1, -2)) if transB else b
    scaled = _times(n, left @ right, alpha)
    if c is None or beta == 0.0:
        return scaled
    # One row for all is a bias, whichever way it is written.
    row = ops.squeeze(c, axes=(-2,)) if c.rank == 2 and c.shape[0] == 1 else c
    return scaled + _times(n, row, beta)


def _times(n: Node, x: Value, factor: float) -> Value:
    if factor == 1.0:
        return x
    if x.dtype.is_inexact:
        return x * factor
    if factor != int(factor):
        raise n.unsupported(f"a factor of {factor} for {x.dtype.name}", hint="use a whole number")
    return x * int(factor)


@rule("Einsum", since=12)
def einsum(n: Node, *xs: Value, equation: str) -> Value:
    """Products of operands whose axes are named, summed over the names that the result does not have."""
    terms, wanted = _parsed(n, equation, [x.rank for x in xs])
    operands = _stretched([_diagonal(_Named(x, labels)) for x, labels in zip(xs, terms, strict=True)])
    found = operands[0]
    for index, other in enumerate(operands[1:], 1):
        later = {label for o in operands[index + 1 :] for label in o.labels}
        found = _multiplied(found, other, {*wanted, *later})
    return _ordered(_summed(found, wanted), wanted).value


_Label: TypeAlias = str | int
"""A letter, or an axis of the ellipsis counted from its end."""


@dataclass(frozen=True, slots=True)
class _Named:
    """A tensor whose axes have names."""

    value: Value
    labels: tuple[_Label, ...]

    def sizes(self, labels: Iterable[_Label]) -> list[Size]:
        return [self.value.shape[self.labels.index(label)] for label in labels]


def _parsed(n: Node, equation: str, ranks: Sequence[int]) -> tuple[list[tuple[_Label, ...]], tuple[_Label, ...]]:
    """The labels of each operand, and those of the result."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    written = left.split(",")
    if len(written) != len(ranks):
        raise n.malformed(f"{equation!r} for {len(ranks)} operands", hint="it names one term for each")
    terms = [_labels(n, term, rank - len(term.replace("...", ""))) for term, rank in zip(written, ranks, strict=True)]
    if any(len(labels) != rank for labels, rank in zip(terms, ranks, strict=True)):
        raise n.malformed(f"{equation!r} for operands of ranks {list(ranks)}", hint="it names each axis once")
    every = [label for term in terms for label in term]
    ellipsis = sorted({label for label in every if isinstance(label, int)})
    if not arrow:
        return terms, (*ellipsis, *sorted(x for x in set(every) if isinstance(x, str) and every.count(x) == 1))
    wanted = _labels(n, right, len(ellipsis))
    if len(set(wanted)) != len(wanted) or not set(wanted) <= set(every) or not set(ellipsis) <= set(wanted):
        raise n.malformed(f"{equation!r}", hint="the result names axes of the operands, each once, and the ellipsis")
    return terms, wanted


def _labels(n: Node, term: str, unnamed: int) -> tuple[_Label, ...]:
    """The labels of a term whose ellipsis stands for some unnamed axes."""
    before, dots, after = term.partition("...")
    if not all(c.isascii() and c.isalpha() for c in before + after):
        raise n.malformed(f"the term {term!r}", hint="axes are named by letters, and unnamed ones by one ellipsis")
    return (*before, *(range(-unnamed, 0) if dots else ()), *after)


def _diagonal(x: _Named) -> _Named:
    """Axes of the same name are one axis: the elements where both are at the same place."""
    value, labels = x.value, list(x.labels)
    for label in dict.fromkeys(x.labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            size = value.shape[first]
            # That both are of one size is recorded, where it does not follow from the shapes.
            value = value if value.shape[second] == size else ops.sized(value, axis=second, size=size)
            front, back = (build.expand_dims(ops.iota(size=size), _others(value.rank, a)) for a in (first, second))
            value = ops.reduce_sum(ops.where(ops.equal(front, back), value, 0), axes=(second,))
            value = build.squeeze_dims(value, second)
            del labels[second]
    return _Named(value, tuple(labels))


def _others(rank: int, axis: int) -> list[int]:
    return [a for a in range(rank) if a != axis]


def _stretched(operands: Sequence[_Named]) -> list[_Named]:
    """Axes of size 1 are left out where another operand has more of that name: a product stretches them anyway."""
    longer = {label for o in operands for label, size in zip(o.labels, o.value.shape, strict=True) if size != 1}
    found: list[_Named] = []
    for o in operands:
        gone = [i for i, label in enumerate(o.labels) if label in longer and o.value.shape[i] == 1]
        kept = tuple(label for i, label in enumerate(o.labels) if i not in gone)
        found.append(_Named(build.squeeze_dims(o.value, gone), kept) if gone else o)
    return found


def _summed(x: _Named, kept: Iterable[_Label]) -> _Named:
    """Summed over what is not kept."""
    wanted = set(kept)
    axes = [i for i, label in enumerate(x.labels) if label not in wanted]
    if not axes:
        return x
    value = build.squeeze_dims(ops.reduce_sum(x.value, axes=axes), axes)
    return _Named(value, tuple(label for label in x.labels if label in wanted))


def _ordered(x: _Named, labels: Sequence[_Label]) -> _Named:
    return _Named(build.transpose(x.value, [x.labels.index(label) for label in labels]), tuple(labels))


def _multiplied(a: _Named, b: _Named, needed: set[_Label]) -> _Named:
    """The product of two operands, summed over what nobody needs any more."""
    a, b = _summed(a, {*needed, *b.labels}), _summed(b, {*needed, *a.labels})
    shared = [label for label in a.labels if label in b.labels]
    summed = [label for label in shared if label not in needed]
    if not summed:
        return _by_element(a, b)
    batch = [label for label in shared if label in needed]
    rows = [label for label in a.labels if label not in shared]
    columns = [label for label in b.labels if label not in shared]
    depth = product(tuple(a.sizes(summed)))
    # Without a batch the rows stay as they are: a weight is one matrix for all of them.
    middle = a.sizes(rows) if rows and not batch else [product(tuple(a.sizes(rows)))]
    left = build.reshape(_ordered(a, [*batch, *rows, *summed]).value, (*a.sizes(batch), *middle, depth))
    below = (product(tuple(b.sizes(summed))), product(tuple(b.sizes(columns))))
    right = build.reshape(_ordered(b, [*batch, *summed, *columns]).value, (*b.sizes(batch), *below))
    found = build.reshape(left @ right, (*a.sizes(batch), *a.sizes(rows), *b.sizes(columns)))
    return _Named(found, (*batch, *rows, *columns))


def _by_element(a: _Named, b: _Named) -> _Named:
    """The product without a sum: every axis of either."""
    labels = (*a.labels, *(label for label in b.labels if label not in a.labels))
    wide = [_ordered(o, [label for label in labels if label in o.labels]) for o in (a, b)]
    x, y = (build.expand_dims(o.value, [i for i, label in enumerate(labels) if label not in o.labels]) for o in wide)
    return _Named(x * y, labels)
