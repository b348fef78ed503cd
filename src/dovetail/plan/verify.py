"""The verifier of plans: every step reads what is there, and nothing is written over while someone needs it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from dovetail.errors import DovetailError, VerifyError
from dovetail.ir import leaf
from dovetail.ir.dim import Size, evaluate
from dovetail.ir.fact import Constraint
from dovetail.ir.solve import bare_symbol
from dovetail.ir.value import Value
from dovetail.plan.alias import is_view, root_of
from dovetail.plan.arena import Pool
from dovetail.plan.liveness import may_overwrite
from dovetail.plan.phases import bind_values
from dovetail.plan.plan import Plan, Step

_HINT = "make the plan again with make_plan"


def verify_plan(plan: Plan) -> None:
    """Raise unless the plan computes its graph. Symbolic sizes are checked for one choice of numbers.

    Results in place are checked by the plan's rules, which a plan that was read from text is to be given again.
    """
    _check_steps(plan)
    trial = _Trial(plan, _numbers(plan))
    for value in plan.aliases:
        trial.check_alias(value)
    for step in plan.phase("bind"):
        trial.run(step)
    trial.end_binding()
    for step in plan.phase("run"):
        trial.run(step)
    for name, value in plan.graph.outputs.items():
        trial.need(value, f"the output {name}")
    _check_donations(plan)


def _check_donations(plan: Plan) -> None:
    """Check that each donation is planned once; one without a copy has the output in the memory of the input."""
    if {d.output: d.input for d in plan.donations} != dict(plan.graph.donated):
        raise VerifyError("the donations are not those of the graph", hint=_HINT)
    inputs = {str(v.attrs["name"]): v for v in plan.graph.inputs}
    for donation in plan.donations:
        at, donor = plan.locate(plan.graph.outputs[donation.output]), inputs[donation.input]
        slot = plan.slots.get(at.root)
        there = at.root is donor or (slot is not None and slot.donor is donor)
        if not donation.reason and not (there and at.offset == 0):
            raise VerifyError(f"the output {donation.output} is not in the memory of {donation.input}", hint=_HINT)


def _check_steps(plan: Plan) -> None:
    """Check that each value that is computed has one step, in the right phase."""
    expected = [v for v in plan.graph.values if v.op not in leaf.LEAVES and not is_view(v, plan.aliases)]
    if len({s.name for s in plan.steps}) != len(plan.steps):
        raise VerifyError("two steps have one name", hint=_HINT)
    if len(plan.steps) != len(expected) or {s.value for s in plan.steps} != set(expected):
        raise VerifyError(f"there are {len(plan.steps)} steps for {len(expected)} values", hint=_HINT)
    early = bind_values(plan.graph)
    phases = [s.phase for s in plan.steps]
    if phases != sorted(phases):
        raise VerifyError("a step of the bind phase stands behind one of the run", hint=_HINT)
    for step in plan.steps:
        if step.phase == "bind" and step.value not in early:
            raise _wrong(plan, step, "is in the bind phase and depends on an input")


def _numbers(plan: Plan) -> dict[str, Size]:
    """Numbers for the symbols that fit the constraints, if a few tries find them."""
    fixed: dict[str, Size] = {}
    constraints = plan.graph.constraints
    for fact in constraints:
        for size, number in ((fact.left, fact.right), (fact.right, fact.left)):
            if fact.relation == "equals" and isinstance(number, int) and (name := bare_symbol(size)) is not None:
                fixed[name] = number
    tries = [dict.fromkeys(plan.symbols, n) | fixed for n in (*_DIVIDE_WELL, *range(1, 65))]
    return next((t for t in tries if all(_holds(c, t) for c in constraints)), tries[0])


_DIVIDE_WELL = (840, 2520, 1024)


def _holds(constraint: Constraint, numbers: Mapping[str, Size]) -> bool:
    try:
        return constraint.holds(numbers)
    except DovetailError:
        return False  # a division by zero has no answer


def _wrong(plan: Plan, step: Step, what: str) -> VerifyError:
    return VerifyError(f"the step {step.name} {what}", hint=_HINT, where=plan.graph.where(step.value))


class _Trial:
    """Memory as the steps write it: which tensor the bytes of each pool belong to."""

    def __init__(self, plan: Plan, binding: Mapping[str, Size]) -> None:
        self.plan = plan
        self.binding = binding
        self.donated = set(plan.graph.donated.values())
        self.extents: dict[Pool, int] = {
            "arena": self.number(plan.arena_size),
            "scratch": self.number(plan.scratch_size),
            "bound": self.number(plan.bound_size),
        }
        self.starts: dict[Pool, list[int]] = {pool: [] for pool in self.extents}
        self.owners: dict[tuple[Pool, int], Value] = {}
        self.alive: set[Value] = set()
        self.lent: dict[Value, Value] = {}
        """Donated input -> the tensor that is in its memory now, once that is another."""

    def number(self, size: Size) -> int:
        return size if isinstance(size, int) else evaluate(size, self.binding)

    def check_alias(self, value: Value) -> None:
        """Check that the elements of a view are inside its root, which is no view itself."""
        alias = self.plan.aliases[value]
        shape = [self.number(s) for s in value.shape]
        first = last = self.number(alias.offset)
        is_root = not is_view(alias.root, self.plan.aliases)
        if not is_root or len(alias.strides) != len(shape) or alias.root.dtype is not value.dtype:
            raise VerifyError(f"{value!r} is no view of {alias.root!r}", hint=_HINT)
        for size, stride in zip(shape, map(self.number, alias.strides), strict=True):
            first += min(0, (size - 1) * stride)
            last += max(0, (size - 1) * stride)
        if 0 not in shape and not 0 <= first <= last <= self.number(alias.root.tensor.bytes) - value.dtype.itemsize:
            raise VerifyError(f"{value!r} reaches beyond {alias.root!r}", hint=_HINT)

    def need(self, value: Value, who: str) -> None:
        root = root_of(value, self.plan.aliases)
        if root in self.lent:
            raise VerifyError(f"{who} reads {root!r}, which {self.lent[root]!r} was written over", hint=_HINT)
        if root.op in (leaf.INPUT, leaf.PARAM, leaf.CONST) or root in self.alive or root.tensor.count == 0:
            return
        raise VerifyError(f"{who} reads {root!r}, which is not there", hint=_HINT)

    def end_binding(self) -> None:
        """Free the scratch memory of the bind phase."""
        self.alive = {v for v in self.alive if self.plan.slots[v].pool != "scratch"}

    def run(self, step: Step) -> None:
        for operand in step.operands:
            self.need(operand, f"the step {step.name}")
        read = {root_of(v, self.plan.aliases) for v in step.operands}
        overs = dict(zip(step.results, step.overs or [None] * len(step.results), strict=True))
        for result, over in overs.items():
            if over is None:
                continue
            if over not in may_overwrite(step.value, self.plan.aliases, self.plan.rules, result):
                raise _wrong(self.plan, step, f"may not write over {over!r}")
            if not self.same_place(over, result):
                raise _wrong(self.plan, step, f"is not where {over!r} lies")
        written: set[Value] = set()
        for result, over in overs.items():
            for lost in self.write(step, result):
                if lost in written or (lost in read and lost is not over):
                    raise _wrong(self.plan, step, f"writes over {lost!r}, which it needs")
                self.alive.discard(lost)
            written.add(result)
        self.alive |= written

    def same_place(self, one: Value, other: Value) -> bool:
        slots = self.plan.slots
        if other in slots and slots[other].donor is one:
            return True
        return one in slots and other in slots and slots[one] == slots[other]

    def write(self, step: Step, result: Value) -> list[Value]:
        """Put a result into its slot; the tensors that it writes over."""
        slot = self.plan.slots.get(result)
        if slot is None or slot.size != result.tensor.bytes:
            raise _wrong(self.plan, step, f"has no slot of {result.tensor.bytes} bytes for {result!r}")
        pool, start = slot.pool, self.number(slot.offset)
        end = start + self.number(slot.size)
        if pool == "heap" or start == end:
            return []
        if pool == "donated":
            donor = slot.donor
            if donor is None or donor.tensor.bytes != slot.size or str(donor.attrs["name"]) not in self.donated:
                raise _wrong(self.plan, step, f"puts {result!r} into memory that is not donated")
            lost = self.lent.get(donor, donor)
            self.lent[donor] = result
            return [lost]
        if start % self.plan.alignment or start < 0 or end > self.extents[pool]:
            raise _wrong(
                self.plan, step, f"puts {result!r} at {slot.offset}, which is unaligned or outside of the {pool}"
            )
        if (pool == "arena") != (step.phase == "run"):
            raise _wrong(self.plan, step, f"writes to the {pool}, which is not there in the {step.phase} phase")
        starts = self.starts[pool]
        at = bisect_left(starts, start)
        if at and starts[at - 1] + self.length(pool, starts[at - 1]) > start:
            at -= 1
        after = bisect_left(starts, end)
        lost = [self.owners.pop((pool, s)) for s in starts[at:after]]
        starts[at:after] = [start]
        self.owners[pool, start] = result
        return lost

    def length(self, pool: Pool, start: int) -> int:
        return self.number(self.plan.slots[self.owners[pool, start]].size)
