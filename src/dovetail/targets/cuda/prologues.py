"""Which step may be the prologue of the next one: each block of that computes all of it, and reads it nearby."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.dataclass import dataclass
from dovetail.ir.dim import product
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused
from dovetail.kernels.loops.composed import takes_prologue
from dovetail.plan.plan import Step
from dovetail.targets.cuda.footprints import Footprints, meet, taken
from dovetail.targets.cuda.gpu_kernel import GpuKernel
from dovetail.targets.cuda.launch_choices import IS_APART, IS_WHOLE, Need

READS_IT = Need(
    "blocks_read_it_from_shared_memory",
    "a kernel that reads it as one operand, all of it in each block",
    "fewer columns in what the next step reads",
)
KNOWN_SIZES = Need("sizes_are_known", "sizes that are numbers", "compile for fixed sizes")


@dataclass(frozen=True, slots=True)
class Read:
    """What a step reads of the one before it, and what both are bound to as one kernel."""

    pointer: str
    """Through which the step reads it."""
    result: str
    """Through which the one before it writes it."""
    keep: bool
    """Whether others read it too."""
    counts: Mapping[str, int]
    """Elements of each result, by the pointers that write them."""
    names: Mapping[str, str]
    """The pointers of the one before it in the whole kernel."""
    bindings: Mapping[str, Value]
    """The pointers of the whole kernel."""


def read_by_next(
    memory: Footprints,
    before: tuple[Step, tuple[GpuKernel, ...]],
    after: tuple[Step, tuple[GpuKernel, ...]],
) -> Read | Refused | None:
    """What a step reads of the one before it, where blocks may compute that for themselves; refused where they may not,
    and None where it reads nothing.

    Blocks are anywhere while the first one writes results that others read: no block may find these in memory that it
    reads, and none may write what another one still reads.
    """
    (step, (small,)), (next_step, (large,)) = before, after
    read = [(name, v) for name, v in large.bindings.items() if v in step.results]
    if not read:
        return None
    if len(read) != 1:
        return READS_IT.refused(f"{len(read)} operands")
    if taken(step) or {*step.results} & {*taken(next_step)}:
        return IS_APART.refused("a step in place")
    ((pointer, result),) = read
    if not all([memory.is_whole(v) for v in step.results]) or small.has_more or large.workspace:
        return IS_WHOLE.refused("a kernel in parts" if small.has_more or large.workspace else "a part of a tensor")
    if small.checks:
        return IS_WHOLE.refused("a kernel that checks indices")  # each block would tell the status again
    if not takes_prologue(large.kernel, pointer):
        return READS_IT.refused("another kernel")
    if meet(memory.spans(small, False), memory.spans(large, True)):
        return IS_APART.refused("a result in memory that other blocks still read")
    others = [v for v in step.results if v is not result]
    used = [v for v in (*small.bindings.values(), *large.bindings.values()) if v not in others]
    if meet([memory.span(v) for v in others], [memory.span(v) for v in used]):
        return IS_APART.refused("another result in memory that other blocks still read")
    written = {n: small.bindings[n] for n in small.kernel.written}
    sizes = {n: product(v.shape) for n, v in written.items()}
    counts = {n: count for n, count in sizes.items() if isinstance(count, int)}
    if len(counts) != len(sizes):
        return KNOWN_SIZES.refused("symbols")
    by_value = {v: name for name, v in large.bindings.items()}
    names = {n: f"before_{n}" if v is result else by_value.get(v, f"before_{n}") for n, v in small.bindings.items()}
    keep = memory.readers.get(result, 0) > 1
    bindings = {n: v for n, v in large.bindings.items() if n != pointer}
    bindings |= {names[n]: v for n, v in small.bindings.items() if keep or v is not result}
    own = next(n for n, v in written.items() if v is result)
    return Read(pointer, own, keep, counts, names, bindings)


__all__ = ["Read", "read_by_next"]
