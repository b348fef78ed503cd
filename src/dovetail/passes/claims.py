"""What a target says of itself, as data: the ops it runs natively, its limits, its machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dovetail.declare.cost import Machine
from dovetail.ir.dtype import DType
from dovetail.ir.type import tensors
from dovetail.ir.value import Value
from dovetail.passes.memory_rules import MemoryRules
from dovetail.passes.regions import RegionLimits

Dispatch = Literal["prefer_native", "force_common", "force_native"]
"""How an op is run: natively where claimed, always by its expansion, or natively or not at all."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A named fact that must hold of a value for a target's kernel to take it."""

    name: str
    holds: Callable[[Value], bool]
    reason: str


@dataclass(frozen=True, slots=True)
class Anchor:
    """What the kernel of an op computes besides: elementwise steps after it (epilogue) or before it (prologue).

    Each condition is a fact about the region that would be made of both; None: the kernel takes no such steps at all.
    """

    epilogue: tuple[Condition, ...] | None = None
    prologue: tuple[Condition, ...] | None = None


@dataclass(frozen=True, slots=True)
class Claims:
    """A target as passes see it."""

    target: str
    machine: Machine
    native: Mapping[str, tuple[Condition, ...]]
    """Op name -> what must hold of a value besides; an op that is not listed is not native."""
    dtypes: tuple[DType, ...]
    regions: RegionLimits = field(default_factory=RegionLimits)
    batches_regions: bool = False
    """Whether independent regions of one form run as one kernel."""
    anchors: Mapping[str, Anchor] = field(default_factory=dict[str, Anchor])
    """Op name -> which elementwise steps its kernel takes in; the kernel of an op that is not listed takes none."""
    broadcasts: Literal["implicit", "explicit"] = "implicit"
    """Whether elementwise kernels stretch operands themselves or need equal shapes."""
    unrolls_at_most: int = 64
    """How many trips of a loop are unrolled where loops are not native."""
    memory: MemoryRules = field(default_factory=MemoryRules)
    """What its kernels may do with memory; without rules no step writes over what it reads."""

    def refusal(self, value: Value) -> Condition | None:
        """Why the target does not run this value natively; None when it does."""
        conditions = self.native.get(value.op.name)
        if conditions is None:
            return Condition("op_is_native", _never, f"{self.target} has no kernel for {value.op.name}")
        for tensor in (t for v in (value, *value.operands) for t in tensors(v.type)):
            if tensor.dtype not in self.dtypes:
                return Condition("dtype_is_native", _never, f"{self.target} does not compute in {tensor.dtype.name}")
        return next((c for c in conditions if not c.holds(value)), None)

    def has(self, op: str) -> bool:
        return op in self.native


def _never(value: Value) -> bool:
    return False
