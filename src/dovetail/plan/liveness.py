"""Liveness: what each step makes and reads, how long tensors live, and which of them a step may write over."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dovetail import ops
from dovetail.declare.cost import estimate
from dovetail.declare.fused import FusedOp
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.graph import Subgraph
from dovetail.ir.rewrite import rebuild_values
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops.region import anchor_of, region
from dovetail.plan.alias import Alias, is_dense


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
    """Whether every step stands behind those that go before it."""


def results_of(value: Value) -> tuple[Value, ...]:
    """The tensors that a step makes: the value itself, or its items."""
    if isinstance(value.type, TensorType):
        return (value,)
    return tuple(leaf.item(value, i) for i in range(len(value.type.items)))


class Measure:
    """Bytes of tensors and rounded estimates of them; equal types are measured once."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self._known: dict[TensorType, tuple[Size, int]] = {}

    def __call__(self, type: TensorType) -> tuple[Size, int]:
        found = self._known.get(type)
        if found is None:
            size = type.bytes
            found = self._known[type] = (size, round_up(estimate(size), self.alignment))
        return found


def round_up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def make_flow(
    steps: Sequence[Value],
    aliases: Mapping[Value, Alias],
    held: Collection[Value],
    bound_by: Mapping[Value, Sequence[Value]],
    measure: Measure,
) -> Flow:
    """The flow of these steps. `held` lives to the end; `bound_by` lists steps that bind the sizes of another."""
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
    place = {value: i for i, value in enumerate(steps)} if bound_by else {}
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
        if bound_by:
            before.update((place[v], None) for v in bound_by.get(value, ()) if v in place)
            ordered = ordered and max(before, default=-1) < step
        after.append(tuple(before))
        over.append(tuple([number[v] for v in may_overwrite(value, aliases) if v in number]) if roots else ())
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


def may_overwrite(value: Value, aliases: Mapping[Value, Alias]) -> list[Value]:
    """The roots whose memory the result may take, element for element, once nobody else needs them."""
    direct = _read_directly(value)
    if not direct or not isinstance(value.type, TensorType):
        return []
    found: dict[Value, bool] = {}
    for index, operand in enumerate(value.operands):
        alias = aliases.get(operand)
        root = operand if alias is None else alias.root
        # Another way to look at the same root would see elements that are already written over.
        fits = index in direct and _same_elements(value.type, operand.tensor, alias)
        found[root] = fits and found.get(root, True)
    return [root for root, fits in found.items() if fits]


def _same_elements(result: TensorType, type: TensorType, alias: Alias | None) -> bool:
    """Whether element i of the operand lies in the bytes that element i of a dense result would take."""
    if type.dtype.itemsize != result.dtype.itemsize:
        return False
    if type.shape != result.shape and type.count != result.count:
        return False
    if alias is None:
        return True
    return alias.root.tensor.bytes == result.bytes and is_dense(type, alias.strides)


def _read_directly(value: Value) -> Collection[int]:
    """The operands that are read at the index of the element that is written, and nowhere else."""
    if value.op.elementwise:
        return range(len(value.operands))
    if value.op is region:
        body: Subgraph = value.attrs["body"]
        if anchor_of(body) is not None:
            body = _spelled(body)
            return _beside(body) if _is_product(body) else ()
        return _beside(body) if body.results[0].op.elementwise else ()
    if isinstance(value.op, FusedOp):
        _, _, body = value.op.traced(tuple([v.type for v in value.operands]), value.attrs, value.attrs_key)
        # Kernels keep the sums of products to themselves until they write results, once; other sums may not wait.
        return _beside(body) if _is_product(body) else ()
    return ()


@lru_cache(maxsize=1 << 10)
def _spelled(body: Subgraph) -> Subgraph:
    """The body with its declared ops spelled out, as kernels see it."""
    results = body.results
    while True:
        lower = rebuild_values(results, lambda value, operands: value.op.expansion(operands, value.attrs))
        if all(lower[r] is r for r in results):
            return Subgraph(body.arguments, results)
        results = tuple([lower[r] for r in results])


@lru_cache(maxsize=1 << 10)
def _beside(body: Subgraph) -> Collection[int]:
    """The arguments that only elementwise values read, and nothing but such values reads what comes of them."""
    moved = set(walk([v for reader in body.values if not reader.op.elementwise for v in reader.operands]))
    return {int(v.attrs["index"]) for v in body.values if v.op is leaf.ARGUMENT and v not in moved}


@lru_cache(maxsize=1 << 10)
def _is_product(body: Subgraph) -> bool:
    """Whether it is a product of matrices, or a convolution of all channels, with elementwise work on it."""
    others = [v for v in body.values if v.operands and not v.op.elementwise and v.op is not ops.permute]
    if len(others) != 1 or not body.results[0].op.elementwise:
        return False
    return others[0].op is ops.matmul or (others[0].op is ops.conv and others[0].attrs["groups"] == 1)
