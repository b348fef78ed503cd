"""Rotations of pairs of features, spelled half by half."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.value import Value
from dovetail.passes.canonical.rule import listed, rule


@rule(ops.concat, numerics="reassociated")
def rotated_by_halves(value: Value) -> Value | None:
    """(a * c - b * s, b * c + a * s) of the halves of x is x * (c, c) + (-b, a) * (s, s); the other way with -s."""
    if value.known_type is None or len(value.operands) != 2 or value.attrs["axis"] != -1:
        return None
    first, second = value.operands
    if first.op is ops.sub:
        return _rotated(value, first.operands, second)
    if first.op is not ops.add:
        return None
    found = _rotated(value, first.operands, second, back=True)
    return found if found is not None else _rotated(value, first.operands[::-1], second, back=True)


@rule(ops.concat, numerics="reassociated")
def rotated_by_neighbours(value: Value) -> Value | None:
    """(a * c - b * s, b * c + a * s) of each pair of neighbours in x is x * (c, c) + (-b, a) * (s, s), cut in pairs."""
    if value.known_type is None or len(value.operands) != 2 or value.attrs["axis"] != -1:
        return None
    if not all(map(_is_column, value.operands)):
        return None
    first, second = (v.operands[0] for v in value.operands)
    if first.op is not ops.sub:
        return None
    for a, c in _orders(first.operands[0]):
        for b, s in _orders(first.operands[1]):
            pairs = _pairs_of(a, b)
            if pairs is None or pairs.op is not ops.split or pairs.shape != value.shape:
                continue
            if any(angle.shape[-1:] != a.shape[-1:] for angle in (c, s)) or not _holds(second, (b, c), (a, s)):
                continue
            turned = ops.merge(ops.concat(ops.neg(b.operands[0]), a.operands[0], axis=-1), axis=-1)
            rotated = ops.add(ops.mul(pairs.operands[0], _twice(c)), ops.mul(turned, _twice(s)))
            return pairs.with_operands((rotated,))
    return None


def _is_column(value: Value) -> bool:
    """Whether an axis of size 1 was put behind the others."""
    return value.op is ops.unsqueeze and value.attrs["axes"] == (-1,)


def _pairs_of(a: Value, b: Value) -> Value | None:
    """The value that has a and b as the two columns of its last axis."""
    if any(v.op is not ops.squeeze or v.attrs["axes"] != (-1,) for v in (a, b)):
        return None
    first, second = a.operands[0], b.operands[0]
    return first.operands[0] if _are_halves(first, second) and first.shape[-1] == 1 else None


def _twice(angle: Value) -> Value:
    """Each angle at both features of its pair."""
    return ops.merge(ops.expand(ops.unsqueeze(angle, axes=(-1,)), axis=-1, size=2), axis=-1)


def _rotated(value: Value, products: tuple[Value, ...], second: Value, *, back: bool = False) -> Value | None:
    """The rotation whose first half is made of two products, turned back or not."""
    for a, c in _orders(products[0]):
        for b, s in _orders(products[1]):
            x = _whole(a, b)
            if x is None or x.shape != value.shape or any(angle.shape[-1:] != a.shape[-1:] for angle in (c, s)):
                continue
            fits = _turns_back(second, (b, c), (a, s)) if back else _holds(second, (b, c), (a, s))
            if fits:
                cos, sin = (ops.concat(angle, angle, axis=-1) for angle in (c, ops.neg(s) if back else s))
                left, right = (ops.part(x, axis=-1, index=index, parts=2) for index in (0, 1))
                return ops.add(ops.mul(x, cos), ops.mul(ops.concat(ops.neg(right), left, axis=-1), sin))
    return None


@rule(ops.mul)
def turned_the_other_way(value: Value) -> Value | None:
    """(b, -a) * s is (-b, a) * -s, where a and b are the halves of one tensor."""
    for turned, sin in (value.operands, value.operands[::-1]):
        if turned.op is not ops.concat or turned.attrs["axis"] != -1 or len(turned.operands) != 2:
            continue
        b, negative = turned.operands
        if value.known_type is not None and negative.op is ops.neg and _are_halves(negative.operands[0], b):
            return ops.mul(ops.concat(ops.neg(b), negative.operands[0], axis=-1), ops.neg(sin))
    return None


def _orders(product: Value) -> tuple[tuple[Value, Value], ...]:
    """The two factors of a product, either one first."""
    if product.op is not ops.mul:
        return ()
    left, right = product.operands
    return ((left, right), (right, left))


def _turns_back(second: Value, kept: tuple[Value, Value], taken: tuple[Value, Value]) -> bool:
    """Whether it is one product without another, or with that of the opposite angle."""
    if second.op is ops.sub:
        return [set(v.operands) if v.op is ops.mul else None for v in second.operands] == [set(kept), set(taken)]
    return _holds(second, kept, (taken[0], ops.neg(taken[1])))


def _holds(total: Value, *products: tuple[Value, Value]) -> bool:
    """Whether a value is the sum of two products, whatever comes first."""
    if total.op is not ops.add:
        return False
    wanted = [set(p) for p in products]
    found = [set(v.operands) if v.op is ops.mul else set[Value]() for v in total.operands]
    return found == wanted or found == wanted[::-1]


def _whole(a: Value, b: Value) -> Value | None:
    """The value whose two halves along the last axis are a and b, or that has them in turns."""
    if _are_halves(a, b):
        return a.operands[0]
    pairs = _pairs_of(a, b)
    return None if pairs is None else ops.merge(ops.permute(pairs, order=(-1, -2)), axis=-1)


def _are_halves(a: Value, b: Value) -> bool:
    """Whether a and b are the first and the second half of one tensor along its last axis."""
    if a.op is not ops.part or b.op is not ops.part or a.operands != b.operands:
        return False
    wanted = [{"axis": -1, "index": index, "parts": 2} for index in (0, 1)]
    return [dict(v.attrs) for v in (a, b)] == wanted


RULES = listed(globals())
