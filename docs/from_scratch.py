"""dovetail from scratch: the whole idea in one file, with nothing but NumPy. Read it from top to bottom, or run it.

A graph compiler finds small graphs inside a large one, and puts something faster in their place. Usually such a fusion
is written several times: as a pattern, as a replacement, as what to do where there is no kernel for it, as a check when
it may be done. The copies drift apart; and when a fusion is not done, nobody says so.

Here a fusion is written once, as a function, and what does not fuse has a reason and a price. It takes eight steps:

    1 values   2 ops   3 declarations   4 the matcher   5 prices   6 fusing   7 the judge   8 the report

At the end there is a model in which some layers fuse, and the report says what is wrong with the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

import numpy as np

Shape: TypeAlias = tuple[int, ...]
Array: TypeAlias = "np.ndarray[Any, Any]"

# ---------------------------------------------------------------------------------------------------------- 1. values
# A value is an op on operands. It never changes, and the same expression is the same object. So equal work is found by
# writing it down, comparing two graphs is comparing two pointers, and a value can be the key of a dictionary.


@dataclass(frozen=True, eq=False)
class Value:
    """One node of a graph."""

    op: Op
    operands: tuple[Value, ...]
    attrs: Mapping[str, Any]
    shape: Shape | None
    """None in patterns, which fit any size."""
    number: int
    """The how-many-th value it is; commutative ops have their operands in this order, so that a + b is b + a."""

    def __add__(self, other: Value | float) -> Value:
        return add(self, other)

    def __mul__(self, other: Value | float) -> Value:
        return mul(self, other)

    def __truediv__(self, other: Value | float) -> Value:
        return div(self, other)

    def __matmul__(self, other: Value) -> Value:
        return matmul(self, other)


_known: dict[Any, Value] = {}


def make(op: Op, operands: Iterable[Value | float] = (), **attrs: Any) -> Value:
    """The one value of an op on these operands."""
    lifted = tuple(v if isinstance(v, Value) else make(NUMBER, value=float(v), shape=()) for v in operands)
    if op.commutes:
        lifted = tuple(sorted(lifted, key=lambda v: v.number))
    key = (op, lifted, tuple(sorted(attrs.items())))
    if key not in _known:
        shape = None if any(v.shape is None for v in lifted) else op.shape_of(lifted, attrs)
        _known[key] = Value(op, lifted, attrs, shape, number=len(_known))
    return _known[key]


def walk(outputs: Iterable[Value], until: Iterable[Value] = ()) -> list[Value]:
    """Every value behind the outputs once, operands first. Models are deep: a loop, no recursion."""
    given = set(until)
    order: dict[Value, None] = {}
    stack = list(outputs)
    while stack:
        value = stack[-1]
        waiting = [v for v in value.operands if v not in order and v not in given]
        if value in order or value in given:
            stack.pop()
        elif waiting:
            stack += waiting
        else:
            order[stack.pop()] = None
    return list(order)


# ------------------------------------------------------------------------------------------------------------- 2. ops
# A primitive is a NumPy function and a rule for the shape of its result. There are few, and each is plain.


class Op:
    """Something that makes a value of others. A leaf makes one of nothing, and its shape is an attribute."""

    commutes = False

    def __init__(self, name: str, shape: Callable[..., Shape] | None = None, compute: Any = None) -> None:
        self.name, self.shape, self.compute = name, shape, compute

    def __call__(self, *operands: Value | float) -> Value:
        return make(self, operands)

    def shape_of(self, operands: Sequence[Value], attrs: Mapping[str, Any]) -> Shape | None:
        return attrs["shape"] if self.shape is None else self.shape(*[v.shape for v in operands])


def _same(x: Shape) -> Shape:
    return x


def _one_a_row(x: Shape) -> Shape:
    return (*x[:-1], 1)


def _product(x: Shape, w: Shape) -> Shape:
    if x[-1] != w[0]:
        raise TypeError(f"a matmul of {x[-1]} columns and {w[0]} rows")
    return (*x[:-1], w[1])


def _row_mean(x: Array) -> Array:
    return np.mean(x, axis=-1, keepdims=True)


INPUT, NUMBER, HOLE = LEAVES = (Op("input"), Op("number"), Op("hole"))  # holes stand in patterns only
add, mul, div = (Op(f.__name__, np.broadcast_shapes, f) for f in (np.add, np.multiply, np.divide))
add.commutes = mul.commutes = True
tanh, sqrt = Op("tanh", _same, np.tanh), Op("sqrt", _same, np.sqrt)
relu = Op("relu", _same, lambda x: np.maximum(x, 0))  # type: ignore  # one array in, one out
mean = Op("mean", _one_a_row, _row_mean)
matmul = Op("matmul", _product, np.matmul)


def given(name: str, *shape: int) -> Value:
    """Something that every run is given: data or weights."""
    return make(INPUT, name=name, shape=shape)


# ---------------------------------------------------------------------------------------------------- 3. declarations
# This is the heart of it. A fused op is a Python function that says what it computes:
#
#     called with values, it is the expansion of the op       what runs where there is no kernel for it
#     called with holes, it is the pattern to look for        one trace for each choice of its options
#
# Nothing is written twice, so nothing can drift apart. Parameters before the * are tensors; behind it, a Literal is an
# option that is tried choice by choice, and a float is a number that the pattern catches.


@dataclass(frozen=True)
class Guard:
    """A fact that must hold of what was caught, and the words for when it does not. Its name is what reports say."""

    name: str
    holds: Callable[..., bool]
    reason: str
    hint: str


class FusedOp(Op):
    """An op that is declared by its body."""

    def __init__(self, body: Callable[..., Value]) -> None:
        super().__init__(body.__name__)
        self.body, self.guards = body, list[Guard]()
        hints = get_type_hints(body)
        self.tensors = [name for name, hint in hints.items() if hint is Value and name != "return"]
        self.numbers = [name for name, hint in hints.items() if hint is float]
        self.options = {name: get_args(hint) for name, hint in hints.items() if get_args(hint)}

    def __call__(self, *operands: Value | float, **attrs: Any) -> Value:
        return make(self, operands, **attrs)

    def shape_of(self, operands: Sequence[Value], attrs: Mapping[str, Any]) -> Shape | None:
        return self.body(*operands, **attrs).shape

    @cached_property
    def patterns(self) -> list[tuple[dict[str, Any], Value]]:
        """The body called with holes, once for every choice of options."""
        holes = {name: make(HOLE, name=name, shape=None) for name in self.tensors + self.numbers}
        choices = [dict(zip(self.options, chosen, strict=True)) for chosen in product(*self.options.values())]
        return [(choice, self.body(**holes, **choice)) for choice in choices]

    def requires(self, *, reason: str, hint: str) -> Callable[[Callable[..., bool]], None]:
        return lambda holds: self.guards.append(Guard(holds.__name__, holds, reason, hint))

    def refusal(self, caught: Mapping[str, Value]) -> Guard | None:
        """The first guard that does not hold. A guard's parameters name what it asks about."""
        asked = [(g, inspect.signature(g.holds).parameters) for g in self.guards]
        return next((g for g, names in asked if not g.holds(**{n: caught[n] for n in names})), None)


@FusedOp
def linear(x: Value, w: Value, b: Value, *, act: Literal["none", "relu", "tanh"]) -> Value:
    """A matmul with bias and activation: the product is finished before it is written."""
    y = x @ w + b
    return {"none": y, "relu": relu(y), "tanh": tanh(y)}[act]


@linear.requires(
    reason="the bias is {b.shape}; the kernel adds one vector to every row",
    hint="pass the bias as a vector, or add the rest outside",
)
def bias_is_a_vector(w: Value, b: Value) -> bool:
    return w.shape is not None and b.shape == w.shape[1:]


@FusedOp
def rms_norm(x: Value, gain: Value, *, eps: float) -> Value:
    """Each row divided by its root mean square, times a gain: one pass instead of six."""
    return x / sqrt(mean(x * x) + eps) * gain


# ----------------------------------------------------------------------------------------------------- 4. the matcher
# One function compares a pattern with a graph. When it fails it does not return False: it returns where, and how far it
# had come. What fuses and what explains are then the same thing, and an explanation cannot be about something else.


@dataclass(frozen=True)
class Bound:
    """A match: what the holes caught, and the values that the pattern covers, the root first."""

    caught: Mapping[str, Value]
    covers: tuple[Value, ...]


@dataclass(frozen=True)
class Mismatch:
    """No match: how many ops had matched at best, and what was found where something else was wanted."""

    matched: int
    wanted: str
    found: str


Attempt: TypeAlias = tuple[list[tuple[Value, Value]], dict[str, Value], dict[Value, Value]]
"""What is still to compare, what the holes have caught, and what stands for each op of the pattern so far."""


def match(pattern: Value, root: Value) -> Bound | Mismatch:
    """Match, or say where it failed. Operands of commutative ops are tried in both orders."""
    best = Mismatch(-1, "", "")
    attempts: list[Attempt] = [([(pattern, root)], {}, {})]
    while attempts:
        goals, caught, seen = attempts.pop()
        wanted = ""
        while goals and not wanted:
            want, found = goals.pop()
            if want.op is HOLE:
                if caught.setdefault(want.attrs["name"], found) is not found:
                    wanted = f"the same {want.attrs['name']} as before"
            elif want in seen or want.op is NUMBER:
                if seen.get(want, want) is not found:
                    wanted = f"the same {want.op.name} as before"
            elif want.op is not found.op:
                wanted = want.op.name
            else:
                seen[want] = found
                if want.op.commutes:
                    turned = zip(want.operands, reversed(found.operands), strict=True)
                    attempts.append(([*goals, *turned], dict(caught), dict(seen)))
                goals += zip(want.operands, found.operands, strict=True)
            if wanted and len(seen) > best.matched:
                best = Mismatch(len(seen), wanted, found.op.name)
        if not wanted:
            return Bound(caught, tuple(seen.values()))
    return best


# ---------------------------------------------------------------------------------------------------------- 5. prices
# Fusing is not always good, and "not fused" means little without a price. A small model of the machine is enough: a
# kernel takes as long as its arithmetic or its traffic, whichever is longer, and a moment to start.


@dataclass(frozen=True)
class Machine:
    flops_per_second: float = 50e9
    bytes_per_second: float = 10e9
    launch_seconds: float = 1e-6

    def seconds(self, value: Value) -> float:
        """The time of one value as a kernel of its own; leaves start none."""
        if value.op in LEAVES:
            return 0.0
        traffic = sum(4 * size(v) for v in {*value.operands, value})
        return max(flops(value) / self.flops_per_second, traffic / self.bytes_per_second) + self.launch_seconds


def size(value: Value) -> int:
    return prod(value.shape or ())


def flops(value: Value) -> int:
    """Arithmetic; that of a fused op is the arithmetic of its body."""
    if isinstance(value.op, FusedOp):
        return sum(flops(v) for v in walk([value.op.body(*value.operands, **value.attrs)], until=value.operands))
    if value.op is matmul:
        return 2 * size(value.operands[0]) * size(value.operands[1]) // (value.operands[1].shape or (1,))[0]
    return 0 if value.op in LEAVES else max(size(v) for v in (value, *value.operands))


# ---------------------------------------------------------------------------------------------------------- 6. fusing
# Look everywhere, ask the guards, take the best first. A value inside a match may have other readers. That is no reason
# to forbid the fusion: the value stays for them and is computed twice, and the price says whether it pays. This is
# right as long as we replace roots only, and let fall away what nobody reads any more.


@dataclass(frozen=True)
class Match:
    """A place where a fused op could stand: what it would replace, what that gains, and what speaks against it."""

    covers: tuple[Value, ...]
    value: Value
    gain: float
    reason: str = ""
    message: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Fused:
    """A graph after fusing: what happened, and what did not."""

    outputs: tuple[Value, ...]
    applied: tuple[Match, ...]
    missed: tuple[Match, ...]


def fuse(outputs: Sequence[Value], ops: Sequence[FusedOp], machine: Machine) -> Fused:
    """The graph with fused ops where they pay, and what was in the way elsewhere."""
    order = walk(outputs)
    readers: dict[Value, set[Value | None]] = {v: {None} if v in outputs else set() for v in order}
    for value in order:
        for operand in value.operands:
            readers[operand].add(value)
    found = [m for op in ops for root in order for m in _matches(op, root, readers, machine)]
    taken: dict[Value, Match] = {}
    covered: set[Value] = set()
    for m in sorted(found, key=lambda m: -m.gain):
        if not m.reason and covered.isdisjoint(m.covers):
            taken[m.covers[0]] = m
            covered.update(m.covers)
    refused = [m for m in found if m.reason and covered.isdisjoint(m.covers)]
    # A pattern inside a larger one that was refused for the same reason says nothing new.
    said = {(m.reason, v) for m in refused for v in m.covers[1:]}
    missed = [m for m in refused if (m.reason, m.covers[0]) not in said]
    new = _rebuilt(order, lambda v: taken[v].value if v in taken else v)
    return Fused(tuple(new[v] for v in outputs), tuple(taken.values()), tuple(missed))


def _matches(op: FusedOp, root: Value, readers: Mapping[Value, set[Value | None]], machine: Machine) -> Iterator[Match]:
    for choice, pattern in op.patterns:
        bound = match(pattern, root)
        if isinstance(bound, Mismatch) or any(bound.caught[n].op is not NUMBER for n in op.numbers):
            continue
        numbers = {n: bound.caught[n].attrs["value"] for n in op.numbers}
        value = op(*[bound.caught[n] for n in op.tensors], **numbers, **choice)
        shared = [v for v in bound.covers[1:] if not readers[v].issubset(bound.covers)]
        goes = set(bound.covers).difference(walk(shared, until=value.operands))
        gain = sum(map(machine.seconds, goes)) - machine.seconds(value)
        guard = op.refusal(bound.caught)
        if guard is not None:
            yield Match(bound.covers, value, gain, guard.name, guard.reason.format(**bound.caught), guard.hint)
        elif gain <= 0:
            twice = " and ".join(v.op.name for v in shared)
            message = f"somebody else reads its {twice}, which would be computed twice" if twice else "it gains nothing"
            yield Match(bound.covers, value, gain, "it_pays", message, "none needed: apart is faster")
        else:
            yield Match(bound.covers, value, gain)


def _rebuilt(order: Iterable[Value], replaced: Callable[[Value], Value]) -> dict[Value, Value]:
    """Every value on rebuilt operands, operands first."""
    new: dict[Value, Value] = {}
    for value in order:
        by = replaced(value)
        new[value] = make(by.op, [new[v] for v in by.operands], **by.attrs)
    return new


def unfuse(outputs: Iterable[Value]) -> tuple[Value, ...]:
    """Every fused op spelled out again. Values are interned, so this is the very graph that was fused."""
    outputs = tuple(outputs)
    new: dict[Value, Value] = {}
    for value in walk(outputs):
        spell = value.op.body if isinstance(value.op, FusedOp) else None
        operands = [new[v] for v in value.operands]
        new[value] = make(value.op, operands, **value.attrs) if spell is None else spell(*operands, **value.attrs)
    return tuple(new[v] for v in outputs)


# ------------------------------------------------------------------------------------------------------- 7. the judge
# An interpreter so plain that it is hard to get wrong, in float64 if asked. A fused op runs as what its body spells; a
# compiler would make one kernel of it. Whatever is fast is compared with this, and this is never made fast.


def evaluate(outputs: Sequence[Value], feeds: Mapping[str, Array], dtype: type[Any] = np.float64) -> list[Array]:
    plain = unfuse(outputs)
    found: dict[Value, Array] = {}
    for value in walk(plain):
        if value.op is INPUT:
            found[value] = feeds[value.attrs["name"]].astype(dtype)
        elif value.op is NUMBER:
            found[value] = np.array(value.attrs["value"], dtype)
        else:
            found[value] = value.op.compute(*[found[v] for v in value.operands])
    return [found[v] for v in plain]


# ------------------------------------------------------------------------------------------------------ 8. the report
# Everything is there as data already. The report puts it in order, the dearest miss first.


def report(written: Sequence[Value], fused: Fused, machine: Machine) -> str:
    values = [v for v in walk(written) if v.op not in LEAVES]
    names = {value: f"%{i} {value.op.name}" for i, value in enumerate(values)}
    kernels = [v for v in walk(fused.outputs) if v.op not in LEAVES]
    before, after = (1e6 * sum(map(machine.seconds, each)) for each in (values, kernels))
    lines = [f"{len(values)} ops → {len(kernels)} kernels, predicted {before:.0f} → {after:.0f} µs"]
    for m in fused.applied:
        inside = ", ".join(names[v] for v in values if v in m.covers)
        lines.append(f"FUSED   {m.value.op.name:<9} saves {1e6 * m.gain:5.1f} µs   {inside}")
    for m in sorted(fused.missed, key=lambda m: -m.gain):
        price = f"costs {1e6 * m.gain:5.1f} µs" if m.gain > 0 else "costs nothing "
        lines.append(f"MISSED  {m.value.op.name:<9} {price}   at {names[m.covers[0]]}")
        lines += [f"        {m.reason}: {m.message}", f"        hint: {m.hint}"]
    return "\n".join(lines)


def why(op: FusedOp, root: Value) -> str:
    """How far the best pattern of an op gets at a value."""
    found = [match(pattern, root) for _, pattern in op.patterns]
    failed = [f for f in found if isinstance(f, Mismatch)]
    if len(failed) < len(found):
        return f"{op.name} matches"
    best = max(failed, key=lambda f: f.matched)
    return f"{best.matched} ops of {op.name} match, then there is {best.found} and not {best.wanted}"


# --------------------------------------------------------------------------------------------------------- and a model


def model(*second_bias: int) -> tuple[Value, Value]:
    """A norm and three layers, by somebody who knows nothing of the declarations."""
    x, gain = given("x", 64, 256), given("gain", 256)
    rows = gain * (x / sqrt(mean(x * x) + 1e-5))  # here the gain comes first
    first = relu(rows @ given("w1", 256, 1024) + given("b1", 1024))
    second = tanh(first @ given("w2", 1024, 256) + given("b2", *second_bias))
    third = second @ given("w3", 256, 256)
    return relu(third + given("b3", 256)), third / 2.0  # two readers of one product


def main() -> None:
    machine, ops = Machine(), [linear, rms_norm]
    written = model(64, 256)
    print(report(written, fuse(written, ops, machine), machine))

    print("\nFollow the hint, and the second layer fuses too:\n")
    better = model(256)
    fused = fuse(better, ops, machine)
    print(report(better, fused, machine))

    x = given("x", 64, 256)
    print(f"\nWhy is x / tanh(mean(x)) * x no norm? {why(rms_norm, x / tanh(mean(x)) * x)}.")

    assert all(a is b for a, b in zip(unfuse(fused.outputs), better, strict=True))
    print("Unfusing gives back the very same values.")

    rng = np.random.default_rng(0)
    inputs = [v.attrs for v in walk(better) if v.op is INPUT]
    feeds: dict[str, Array] = {a["name"]: rng.normal(size=a["shape"]) / 16 for a in inputs}
    fast, judged = evaluate(fused.outputs, feeds, np.float32), evaluate(better, feeds)
    worst = max(float(np.abs(f - j).max()) for f, j in zip(fast, judged, strict=True))
    assert worst < 1e-5
    print("In float32 it computes what the judge does in float64, but for the last digits.")


if __name__ == "__main__":
    main()
