"""Liveness: what each step makes and reads, how long tensors live, and which of them a step may write over."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dovetail.dataclass import dataclass
from dovetail.declare.cost import estimate
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.passes.memory_rules import NO_RULES, MemoryRules
from dovetail.plan.alias import Alias, Strides, is_dense


@dataclass(frozen=True, slots=True)
class Flow:
    """The steps of one phase and the tensors between them, by number."""

    tensors: tuple[Value, ...]
    sizes: tuple[Size, ...]
    """Bytes of each tensor."""
    weights: tuple[int, ...]
    """Bytes of each tensor as numbers, rounded up to the alignment; estimates where sizes are symbolic."""
    makes: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    """Tensors that a step reads, each once; what is made elsewhere is not listed."""
    over: tuple[tuple[int, ...], ...]
    """Tensors that a step may write its result over, if it is the last to read them."""
    after: tuple[tuple[int, ...], ...]
    """Steps that go before, because they make what is read or bind a size."""
    readers: tuple[int, ...]
    """How many steps read each tensor; what is held to the end counts one more."""
    ordered: bool
    """Whether every step comes after those that go before it."""


def results_of(value: Value) -> tuple[Value, ...]:
    """Return the tensors that a step makes: the value itself, or its items."""
    if isinstance(value.type, TensorType):
        return (value,)
    return tuple(leaf.item(value, i) for i in range(len(value.type.items)))


class Measure:
    """Bytes of tensors and rounded estimates of them; equal types are measured once."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self._known: dict[TensorType, tuple[Size, int]] = {}

    def __call__(self, type: TensorType) -> tuple[Size, int]:
        measured = self._known.get(type)
        if measured is None:
            size = type.bytes
            measured = self._known[type] = (size, round_up(estimate(size), self.alignment))
        return measured


def round_up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def make_flow(
    steps: Sequence[Value],
    aliases: Mapping[Value, Alias],
    held: Collection[Value],
    goes_after: Mapping[Value, Sequence[Value]],
    measure: Measure,
    rules: MemoryRules = NO_RULES,
) -> Flow:
    """Return the flow of these steps. `held` lives to the end; `goes_after` lists the steps that must run before
    another.
    """
    number: dict[Value, int] = {}
    makes: list[tuple[int, ...]] = []
    maker: list[int] = []
    sizes: list[Size] = []
    weights: list[int] = []
    for step, value in enumerate(steps):
        first = len(maker)
        for tensor in results_of(value):
            number[tensor] = len(maker)
            maker.append(step)
            size, weight = measure(tensor.tensor)
            sizes.append(size)
            weights.append(weight)
        makes.append(tuple(range(first, len(maker))))
    place = {value: i for i, value in enumerate(steps)} if goes_after else {}
    readers = [1 if v in held else 0 for v in number]
    reads: list[tuple[int, ...]] = []
    over: list[tuple[int, ...]] = []
    after: list[tuple[int, ...]] = []
    ordered = True
    for step, value in enumerate(steps):
        roots: dict[int, None] = {}
        for operand in value.operands:
            alias = aliases.get(operand)
            root = number.get(operand if alias is None else alias.root)
            if root is not None and root not in roots:
                roots[root] = None
                readers[root] += 1
        reads.append(tuple(roots))
        before = dict.fromkeys([maker[r] for r in roots])
        if goes_after:
            before.update((place[v], None) for v in goes_after.get(value, ()) if v in place)
            ordered = ordered and max(before, default=-1) < step
        after.append(tuple(before))
        alone = roots and isinstance(value.type, TensorType)
        over.append(tuple([number[v] for v in may_overwrite(value, aliases, rules) if v in number]) if alone else ())
    return Flow(
        tuple(number),
        tuple(sizes),
        tuple(weights),
        tuple(makes),
        tuple(reads),
        tuple(over),
        tuple(after),
        tuple(readers),
        ordered,
    )


def may_overwrite(
    value: Value, aliases: Mapping[Value, Alias], rules: MemoryRules, result: Value | None = None
) -> list[Value]:
    """Return the roots whose memory a result of a step may take, element for element, once no other step needs them."""
    direct = rules.read_in_place(value)
    if not direct:
        return []
    written = value if result is None else result
    fits_of: dict[Value, bool] = {}
    own = aliases.get(written)
    layout = None if own is None or is_dense(written.tensor, own.strides) else own.strides
    for index, operand in enumerate(value.operands):
        alias = aliases.get(operand)
        root = operand if alias is None else alias.root
        # Another way to look at the same root would see elements that are already written over.
        fits = index in direct and _same_elements(written.tensor, layout, operand.tensor, alias)
        fits_of[root] = fits and fits_of.get(root, True)
    return [root for root, fits in fits_of.items() if fits]


def _same_elements(result: TensorType, layout: Strides | None, type: TensorType, alias: Alias | None) -> bool:
    """Return whether element i of the operand is stored in the bytes of element i of a result, dense or in a layout."""
    if type.dtype.itemsize != result.dtype.itemsize:
        return False
    if type.shape != result.shape and type.count != result.count:
        return False
    if layout is not None:
        if alias is None or alias.strides != layout or type.shape != result.shape:
            return False
        return alias.root.tensor.bytes == result.bytes
    if alias is None:
        return True
    return alias.root.tensor.bytes == result.bytes and is_dense(type, alias.strides)
