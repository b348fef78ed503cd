"""What a target says of itself, as data: the ops it runs natively, its limits, its machine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import field, replace
from typing import Literal

from dovetail.dataclass import dataclass
from dovetail.declare.cost import Machine
from dovetail.ir.dtype import DType
from dovetail.ir.graph import Subgraph
from dovetail.ir.type import tensors
from dovetail.ir.value import Value
from dovetail.ops.region import is_prologue, region, steps
from dovetail.passes.memory_rules import SEVERAL_RESULTS, MemoryRules
from dovetail.passes.regions import LIMIT, RegionLimits

Dispatch = Literal["prefer_native", "force_common", "force_native"]
"""How an op is run: natively where claimed, always by its expansion, or natively or not at all."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A named fact that must hold of a value for a target's kernel to take it."""

    name: str
    holds: Callable[[Value], bool]
    reason: str
    strict: bool = True
    """Whether it holds for strict compiles too; False where a faster form exists that does not keep every bit."""
    early: bool = False
    """Whether a value of which it does not hold is spelled out before fusing, so that rules see what it is made of."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """What the kernel of an op computes besides: elementwise steps after it (epilogue) or before it (prologue).

    Each condition is a fact about the region that would be made of both; None: the kernel takes no such steps at all.
    """

    epilogue: tuple[Condition, ...] | None = None
    prologue: tuple[Condition, ...] | None = None
    widens: bool = False
    """Whether its kernel reads bytes and widens them to i32 itself."""


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
    multiplies_bytes: bool = False
    """Whether its products of bytes are faster than those of floats, so that dequantised factors stay bytes."""
    fuses_itself: bool = False
    """Whether it has a compiler that fuses: it is handed primitives, and nothing is fused, joined or marked before."""
    merges_kinds: Callable[[Hashable], Hashable] | None = None
    """Members of a group that have one kind by this are computed as one; None where kinds are what the group says."""
    unrolls_at_most: int = 64
    """How many trips of a loop are unrolled where loops are not native."""
    memory: MemoryRules = field(default_factory=MemoryRules)
    """What its kernels may do with memory; without rules no step writes over what it reads."""

    def refusal(self, value: Value) -> Condition | None:
        """Why the target does not run this value natively; None when it does."""
        conditions = self.native.get(value.op.name)
        if conditions is None:
            return Condition("op_is_native", _never, f"{self.target} has no kernel for {value.op.name}")
        for one in (value, *value.operands):
            for tensor in tensors(one.type):
                if tensor.dtype not in self.dtypes:
                    why = f"{self.target} does not compute in {tensor.dtype.name}"
                    return Condition("dtype_is_native", _never, why)
        if value.op is region:
            return self._region_refusal(value)
        return next((c for c in conditions if not c.holds(value)), None)

    def _region_refusal(self, value: Value) -> Condition | None:
        """Why a region that the graph came with is spelled out and marked anew: another target may have made it."""
        body: Subgraph = value.attrs["body"]
        inner = [v for v in body.values if v.operands and not v.op.elementwise and not is_prologue(v)]
        foreign = [v.op.name for v in inner if v.op.name not in self.anchors]
        if foreign or len(inner) > 1:
            names = ", ".join(foreign) or "several"
            return Condition("anchor_is_native", _never, f"{self.target} takes no steps into the kernel of {names}")
        if not inner and len(body.results) > 1 and SEVERAL_RESULTS not in self.memory.in_place:
            why = f"{self.target} writes each result of elementwise steps by a kernel of its own"
            return Condition("region_has_one_result", _never, why)
        limit = None if inner else self.regions.over(len(steps(body)), len(body.arguments))
        return None if limit is None else Condition(LIMIT, _never, f"{self.target} takes at most {limit} in a region")

    def has(self, op: str) -> bool:
        return op in self.native

    def strictly(self) -> Claims:
        """The claims of a strict compile: kernels that keep every bit serve what faster forms would take."""
        return replace(self, native={op: tuple([c for c in some if c.strict]) for op, some in self.native.items()})


def _never(value: Value) -> bool:
    return False
