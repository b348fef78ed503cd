"""Kernel selection, one table per target: conditions refuse, the machine model estimates what remains, the lowest wins.

Estimates within the model's noise are equal; between those, the order of the table decides. Reports read the same
table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from dovetail.dataclass import dataclass
from dovetail.declare.cost import kernel_cost
from dovetail.declare.machine import NOISE, Cost, Machine, estimate, preferred
from dovetail.errors import SizeLimitError
from dovetail.ir.value import Value
from dovetail.kernels.choice import Answer, Offer, Refused, StepProblem
from dovetail.kernels.request import LAUNCH, Request
from dovetail.kernels.spec import Job, TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.runtime.building.attempt import FAULTS, raised
from dovetail.targets.target import Considered

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Row(Generic[D]):
    """A kernel variant: its name, its conditions and its builder."""

    name: str
    answer: Callable[[StepProblem[D]], Answer]
    """Checks the conditions, and offers kernels with their costs, or names the condition that refuses."""
    speed: float = 1.0
    """Its arithmetic relative to what the machine model expects of the op's kind, for kernels that offer no cost."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[D]):
    """A kind of problem, and the variants for it in the order of preference."""

    name: str
    takes: Callable[[Value], bool]
    rows: Callable[[], Sequence[Row[D]]]
    """A function, so that the code of rare kinds is imported when a model has one."""
    holds: Callable[[StepProblem[D]], bool] | None = None
    """What must hold of the body of a step, too; None where values decide."""
    in_order: bool = False
    """Whether the first row that fits is taken: estimates are reported, and decide nothing."""

    def has(self, problem: StepProblem[D]) -> bool:
        """Whether a step is of this kind; one whose body cannot be written is, so that rows say why."""
        if not self.takes(problem.value):
            return False
        try:
            return self.holds is None or self.holds(problem)
        except (SizeLimitError, *FAULTS):
            return True


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the machine model expects of a kernel: seconds, and what bounds them (compute, L2, memory, launch)."""

    seconds: float
    bound: str


@dataclass(frozen=True, slots=True)
class _Answer(Generic[D]):
    """What one row said."""

    kind: str
    row: Row[D]
    answer: Offer | Refused
    in_order: bool = False

    @property
    def name(self) -> str:
        return self.answer.name or self.row.name if isinstance(self.answer, Offer) else self.row.name

    @property
    def is_late(self) -> bool:
        """Whether sizes that are known later decide."""
        return isinstance(self.answer, Offer) and self.answer.variant is not None

    @property
    def has_estimate(self) -> bool:
        """Whether its arithmetic is estimated by its tiles, not by the machine model."""
        return isinstance(self.answer, Offer) and self.answer.work is not None

    @property
    def cost(self) -> Cost | None:
        """Its own work and traffic; None where it counts what the op declares, or sizes are known later."""
        cost = None if self.is_late or not isinstance(self.answer, Offer) else self.answer.cost
        return None if cost is None else cost()

    def estimate(self, step: Step, machine: Machine) -> Estimate:
        """The machine model's estimate; symbols count as the model assumes."""
        own = self.cost
        cost, speed = (kernel_cost(step.value), self.row.speed) if own is None else (own, 1.0)
        # A size that is symbolic may come out below 0 where the model assumes a small one.
        seconds = self.answer.work if isinstance(self.answer, Offer) else None
        work = max(0.0, machine.work(cost)) / speed if seconds is None else seconds()
        traffic = max(0.0, machine.traffic(cost))
        return Estimate(machine.overlapped(work, traffic), machine.bound(work, traffic, estimate(cost.bytes)))


@dataclass(frozen=True, slots=True)
class Table(Generic[D]):
    """The selection table of a target."""

    kinds: tuple[Kind[D], ...]
    on_host: str = ""
    """What runs a step that no row takes, as reports call it; "" where such steps are refused."""

    def select(
        self, step: Step, locations: TensorLocations, device: D, machine: Machine, request: Request = LAUNCH
    ) -> Job | None:
        """The job of a step; None where no row takes it. A row that raises is reported, also where another takes it."""
        answers = list(self._answers(StepProblem(step, locations, device, request)))
        refused: dict[int, Refused] = {}
        chosen = _chosen([one for one in answers if isinstance(one.answer, Offer)], step, machine, refused)
        why = [*(one.answer for one in answers if isinstance(one.answer, Refused)), *refused.values()]
        said = next((r.found for r in why if r.condition == RAISED), None)
        if said is not None:
            locations.refused[step.value] = said
        if chosen is None:
            return None
        cost = chosen[0].cost
        if cost is not None:
            locations.costs[step.value] = cost
        return chosen[1]

    def considered(
        self, step: Step, locations: TensorLocations, device: D, machine: Machine, request: Request = LAUNCH
    ) -> Sequence[Considered]:
        """Every row for the step's kinds of problem: which refuse and why, estimates of the others, which one won."""
        answers = list(self._answers(StepProblem(step, locations, device, request)))
        offers = [one for one in answers if isinstance(one.answer, Offer)]
        refused: dict[int, Refused] = {}
        chosen = _chosen(offers, step, machine, refused)
        winner = None if chosen is None else chosen[0]
        least = None if winner is None else winner.estimate(step, machine).seconds
        rows = [_considered(one, step, machine, winner, least, refused.get(id(one))) for one in answers]
        if self.on_host:
            rows.append(Considered(self.on_host, winner is None, "" if winner is None else "a kernel takes the step"))
        return rows

    def _answers(self, problem: StepProblem[D]) -> Iterator[_Answer[D]]:
        for kind in self.kinds:
            if kind.has(problem):
                for row in kind.rows():
                    answer = _answer(row, problem)
                    several = (answer,) if isinstance(answer, (Offer, Refused)) else answer
                    for one in several:
                        yield _Answer(kind.name, row, one, kind.in_order)


RAISED = "template_raises"
_TOO_LONG = Refused("sizes_can_be_written", "a size that is too long to be written down")


def _answer(row: Row[D], problem: StepProblem[D]) -> Answer:
    try:
        return answer_of(row, problem)
    except SizeLimitError:
        return _TOO_LONG
    except FAULTS as error:
        return _raised(row.name, error)


def answer_of(row: Row[D], problem: StepProblem[D]) -> Answer:
    """What a row says of a step."""
    return row.answer(problem)


def _raised(name: str, error: Exception) -> Refused:
    """A template that raises has no kernel for the step."""
    return Refused(RAISED, raised(name, error))


def _chosen(
    offers: Sequence[_Answer[D]],
    step: Step,
    machine: Machine,
    refused: dict[int, Refused] | None = None,
) -> tuple[_Answer[D], Job] | None:
    """The offer that wins, and its job; `refused` collects offers that could not be built."""
    left = list(offers)
    while left:
        # Rows whose sizes are known later wait together; the last of them suits all sizes.
        late = [one for one in left if one.is_late]
        ordered = {one.kind: one for one in reversed(left) if one.in_order}
        several = [one for one in left if not one.is_late or one is late[0]]
        several = [one for one in several if not one.in_order or one is ordered[one.kind]]
        at = 0
        if len(several) > 1:
            at = preferred([one.estimate(step, machine).seconds for one in several])
        group = late if several[at].is_late else [several[at]]
        job = _built(group)
        if isinstance(job, Job):
            return several[at], job
        if refused is not None:
            refused.update({id(one): job for one in group})
        left = [one for one in left if one not in group]
    return None


def _built(group: Sequence[_Answer[D]]) -> Job | Refused:
    """The job of an offer, or of several between which sizes decide when they are known."""
    offers = [one.answer for one in group if isinstance(one.answer, Offer)]
    try:
        job = offers[-1].build()
        variants = tuple([offer.variant() for offer in offers if offer.variant is not None])
    except SizeLimitError:
        return _TOO_LONG
    except FAULTS as error:
        return _raised(group[-1].row.name, error)
    return replace(job, variants=variants) if isinstance(job, Job) and variants else job


def _considered(
    one: _Answer[D],
    step: Step,
    machine: Machine,
    winner: _Answer[D] | None,
    least: float | None,
    unbuilt: Refused | None,
) -> Considered:
    """A row for people."""
    refusal = one.answer if isinstance(one.answer, Refused) else unbuilt
    if refusal is not None:
        return Considered.of(one.name, refusal, one.kind)
    if one.is_late:
        return Considered(one.name, False, "decided when sizes are known", kind=one.kind)
    price = one.estimate(step, machine)
    ratio = None if least is None else price.seconds / least
    reason = ""
    if one is not winner and winner is not None and ratio is not None:
        near = f"equal within the model's noise of {NOISE:.0%}, and {winner.name} comes first"
        is_near = (abs(ratio - 1) <= NOISE or ratio < 1) and not (one.has_estimate and winner.has_estimate)
        reason = near if is_near else f"{ratio:.2f} times {winner.name}"
        if winner.in_order and one.kind == winner.kind:
            reason = f"{ratio:.2f} times {winner.name}, which comes first"
    return Considered(one.name, one is winner, reason, price.seconds, kind=one.kind, bound=price.bound, ratio=ratio)


__all__ = ["Estimate", "Kind", "Row", "Table"]
