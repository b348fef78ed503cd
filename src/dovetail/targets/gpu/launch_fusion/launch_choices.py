"""Variants of a step without a launch of its own: whether each is taken, and the named condition that refuses it.

A step may be computed within the product after it, between two products, or with the product before it. `dovetail
why` and `dovetail explain --all` show for each variant the condition, what was found and expected, and what would
change it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from dovetail.dataclass import dataclass
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused
from dovetail.plan.plan import Step
from dovetail.targets.target import Considered

KIND = "launches"
"""Of these rows in a report."""
LAUNCH = "launch"
"""The variant of a step with a launch."""
WITHIN, BETWEEN, SCALED, PROLOGUE, HEADS = (
    *("within_product", "between_products", "scaled_sums", "prologue", "with_heads_of_product"),
)
"""The other variants: in the product after a step, whose weights are near; a norm between two products; a norm as the
scale of the sums of a skinny GEMM; in each block of the kernel after it; with the heads of the product before."""
_INSTEAD = {
    WITHIN: "the blocks of the product after it compute it in less time",
    BETWEEN: "the product before it leaves squares, and the one after it scales its sums",
    SCALED: "the product after it scales its sums",
    PROLOGUE: "each block of the kernel after it computes it",
    HEADS: "the product before it does it with the heads of a tile",
}


@dataclass(frozen=True, slots=True)
class Need:
    """A condition of a variant, and what would change it."""

    condition: str
    expected: str
    change: str

    def refused(self, actual: str) -> Refused:
        return Refused(self.condition, actual, self.expected, self.change)


IS_APART = Need(
    "results_are_apart",
    "results that are written over nothing that blocks still read",
    "do not donate the input that the step reads to the result of the next one; other steps in place are the plan's",
)
IS_WHOLE = Need(
    "kernels_and_results_are_whole",
    "one kernel without a workspace, whose result is a tensor of its own",
    "none in the model: sizes chose kernels in parts, and the plan chose memory",
)
ONE_READER = Need("one_product_reads_it", "one", "compute it twice, or let one product read it")
HAS_NONE = Need(
    "a_prologue_has_none",
    "a step before it with a launch",
    "none in the model: the step after it takes the step between",
)
RUN_AT_ONCE = Need(
    "blocks_run_at_once", "no more blocks than run at once, and rows that one of them has", "fewer rows, or columns"
)
FITS = Need("shared_memory_is_enough", "tiles that fit shared memory", "narrower rows, or fewer of them")


@dataclass(slots=True)
class LaunchChoices:
    """The variants considered for the steps of a plan."""

    variants: dict[Value, dict[str, Considered]] = field(default_factory=dict[Value, dict[str, Considered]])
    launched: dict[Value, float] = field(default_factory=dict[Value, float])
    """Seconds of steps with launches, where an estimate was compared with them."""

    def record(
        self,
        steps: Iterable[Step],
        variant: str,
        refused: Refused | None,
        seconds: float | None = None,
        launched: float | None = None,
    ) -> None:
        """Record whether steps take a variant, or what refuses it."""
        taken = Considered(variant, True, seconds=seconds, kind=KIND)
        row = taken if refused is None else Considered.of(variant, refused, KIND, seconds)
        for step in steps:
            self.variants.setdefault(step.value, {})[variant] = row
            if launched is not None:
                self.launched[step.value] = launched

    def undo(self, step: Step, refused: Refused) -> None:
        """Refuse what was taken for a step."""
        for row in [*self.variants.get(step.value, {}).values()]:
            if row.taken:
                self.record([step], row.name, refused)

    def of(self, step: Step) -> tuple[Considered, ...]:
        """Return every variant of a step that was considered, and its launch; nothing where none was."""
        variants = self.variants.get(step.value)
        if variants is None:
            return ()
        taken = next((row.name for row in variants.values() if row.taken), "")
        reason = _INSTEAD.get(taken, "")
        return (*variants.values(), Considered(LAUNCH, not taken, reason, self.launched.get(step.value), KIND))


__all__ = [
    "BETWEEN",
    "FITS",
    "HAS_NONE",
    "HEADS",
    "IS_APART",
    "IS_WHOLE",
    "KIND",
    "LAUNCH",
    "ONE_READER",
    "PROLOGUE",
    "RUN_AT_ONCE",
    "SCALED",
    "WITHIN",
    "LaunchChoices",
    "Need",
]
