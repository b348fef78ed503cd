"""Memory rules: what the kernels of a target may do with memory, as data that the planner goes by.

A target lists in its claims which of these hold of its kernels. Without rules a plan is right for any kernel: no step
writes over what it reads, and every result is dense.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.ir import leaf
from dovetail.ir.graph import Subgraph
from dovetail.ir.rewrite import rebuild_values
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops.region import anchor_of, is_prologue, region


@dataclass(frozen=True, slots=True)
class InPlace:
    """A named rule: the operands, by index, that a kernel reads only at the elements it is about to write."""

    name: str
    operands: Callable[[Value], Collection[int]]
    """None where the rule does not hold of its kernel."""


@dataclass(frozen=True, slots=True)
class ChannelsLast:
    """When the result of a step, [n, c, *spatial], is stored with its channels innermost (NHWC)."""

    gains: Callable[[Value, int], bool]
    """Whether the kernel of a step reads an operand, by index, faster in that layout."""
    keeps: Callable[[Value, int], bool]
    """Whether it reads the operand in any layout, and best in that of its result."""
    writes: Callable[[Value], bool]
    """Whether it writes its result in any layout."""
    prefers: Callable[[Value], bool]
    """Whether it writes its result faster in that layout."""


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """What the kernels of a target may do with memory."""

    in_place: tuple[InPlace, ...] = ()
    channels_last: ChannelsLast | None = None
    """None where every image has its pixels innermost."""
    strided_results: frozenset[str] = frozenset()
    """Names of ops whose kernels write rows at any stride, each row dense."""
    seen_through: frozenset[str] = frozenset()
    """Names of ops on weights that kernels look through: their results take memory only where something reads them."""

    def read_in_place(self, value: Value) -> Collection[int]:
        """The operands whose memory the result of a step may take."""
        for rule in self.in_place:
            found = rule.operands(value)
            if found:
                return found
        return ()


NO_RULES = MemoryRules()
"""What holds of every kernel."""


def _elementwise(value: Value) -> Collection[int]:
    return range(len(value.operands)) if value.op.elementwise else ()


def _elementwise_region(value: Value) -> Collection[int]:
    if value.op is not region:
        return ()
    body: Subgraph = value.attrs["body"]
    if not isinstance(value.type, TensorType):
        return ()
    # A kernel that reduces goes over its rows several times, and may keep values in the row of its result.
    if any(v.operands and not v.op.elementwise and not is_prologue(v) for v in body.values):
        return ()
    return _epilogue_arguments(body) if body.results[0].op.elementwise else ()


def _several_results(value: Value) -> Collection[int]:
    if value.op is not region or isinstance(value.type, TensorType) or value.attrs["lanes"] != 1:
        return ()
    body: Subgraph = value.attrs["body"]
    return range(len(value.operands)) if is_elementwise(body) else ()


@lru_cache(maxsize=1 << 10)
def is_elementwise(body: Subgraph) -> bool:
    """Whether a body has elementwise steps and nothing else, and results of one shape that it computes."""
    first = body.results[0]
    return all(not v.operands or v.op.elementwise for v in body.values) and all(
        r.operands and r.shape == first.shape for r in body.results
    )


def _product_epilogue(value: Value) -> Collection[int]:
    if not isinstance(value.type, TensorType):
        return ()
    if value.op is region and anchor_of(value.attrs["body"]) is not None:
        body = _spelled(value.attrs["body"])
    elif isinstance(value.op, FusedOp):
        _, _, body = value.op.traced(tuple([v.type for v in value.operands]), value.attrs, value.attrs_key)
    else:
        return ()
    return _epilogue_arguments(body) if _is_product(body) else ()


@lru_cache(maxsize=1 << 10)
def _spelled(body: Subgraph) -> Subgraph:
    """The body with its declared ops spelled out, as kernels see it."""
    results = body.results
    while True:
        lower = rebuild_values(results, lambda value, operands: value.op.expansion(operands, value.attrs))
        if all(lower[r] is r for r in results):
            return Subgraph(body.arguments, results)
        results = tuple([lower[r] for r in results])


def _update(value: Value) -> Collection[int]:
    return (0,) if value.op in (ops.scatter_elements, ops.scatter_nd) else ()


@lru_cache(maxsize=1 << 10)
def _epilogue_arguments(body: Subgraph) -> Collection[int]:
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


ELEMENTWISE = InPlace("elementwise", _elementwise)
"""Elementwise kernels read element i before they write element i."""
ELEMENTWISE_REGION = InPlace("elementwise_region", _elementwise_region)
"""The same of regions, for the operands that no view inside of them moves."""
SEVERAL_RESULTS = InPlace("several_results", _several_results)
"""Elementwise regions compute element i of all their results before they write one of them."""
PRODUCT_EPILOGUE = InPlace("product_epilogue", _product_epilogue)
"""Matmul and dense convolution kernels hold sums in accumulators and write each result once, after its epilogue."""
UPDATE = InPlace("update", _update)
"""Scatter kernels write the updates into the tensor that they are given."""

__all__ = [
    "ELEMENTWISE",
    "ELEMENTWISE_REGION",
    "NO_RULES",
    "PRODUCT_EPILOGUE",
    "SEVERAL_RESULTS",
    "UPDATE",
    "ChannelsLast",
    "InPlace",
    "MemoryRules",
    "is_elementwise",
]
