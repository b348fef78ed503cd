"""Two compilations side by side: what changed, and what became worse."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.dataclass import dataclass
from dovetail.report.outline import Outline
from dovetail.report.text import bytes_text, time_text

SLOWER = 1.02
"""A predicted time that is longer by this factor is worse; below that the model of the machine says nothing."""
MEASURED_SLOWER = 1.05
"""The same for measured times, which a shared machine moves by a few percent."""


@dataclass(frozen=True, slots=True)
class Change:
    """One number before and after; None where it is not known."""

    what: str
    before: float | None
    after: float | None

    @property
    def is_change(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the second compilation differs from the first."""

    before: Outline
    after: Outline
    deviations: Mapping[str, float]
    """For each output the largest difference of results, as a share of the largest one; empty if nothing was run."""

    @property
    def numbers(self) -> tuple[Change, ...]:
        """What both come to, changed or not."""
        a, b = self.before, self.after
        return (
            Change("kernels", a.kernels, b.kernels),
            Change("on the host", a.on_host, b.on_host),
            Change("bytes moved", a.bytes, b.bytes),
            Change("flops", a.flops, b.flops),
            Change("arena bytes", a.arena_bytes, b.arena_bytes),
            Change("predicted seconds", a.predicted_seconds, b.predicted_seconds),
            Change("measured seconds", a.measured_seconds, b.measured_seconds),
        )

    @property
    def fused(self) -> tuple[Change, ...]:
        """Rules that made another number of kernels."""
        return _changed(self.before.fused, self.after.fused)

    @property
    def missed(self) -> tuple[Change, ...]:
        """Conditions that refused another number of times."""
        return _changed(self.before.missed, self.after.missed)

    def worse(self, tolerance: float) -> tuple[str, ...]:
        """What a gate refuses, in words: lost fusions, more kernels or bytes, longer times, other results."""
        a, b = self.before, self.after
        # Where there are fewer kernels, another rule has taken over.
        fell = [c for c in self.fused if _fell(c)] if b.kernels >= a.kernels else []
        found = [f"{c.what} made {c.before:.0f} kernels and makes {c.after:.0f}" for c in fell]
        if b.kernels > a.kernels:
            found.append(f"{a.kernels} kernels became {b.kernels}")
        if b.on_host > a.on_host:
            found.append(f"{b.on_host} kernels run on the host, and {a.on_host} did")
        if b.bytes > a.bytes * SLOWER:
            found.append(f"{bytes_text(a.bytes)} moved became {bytes_text(b.bytes)}")
        if b.predicted_seconds > a.predicted_seconds * SLOWER:
            found.append(f"predicted {time_text(a.predicted_seconds)} became {time_text(b.predicted_seconds)}")
        if a.measured_seconds and b.measured_seconds and b.measured_seconds > a.measured_seconds * MEASURED_SLOWER:
            found.append(f"measured {time_text(a.measured_seconds)} became {time_text(b.measured_seconds)}")
        # Not above it, and not comparable either: NaN is refused too.
        found += [f"{name} differs by {d:.1e}" for name, d in self.deviations.items() if not d <= tolerance]
        return tuple(found)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _changed(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[Change, ...]:
    rules = sorted({*before, *after})
    changes = [Change(rule, before.get(rule, 0), after.get(rule, 0)) for rule in rules]
    return tuple(change for change in changes if change.is_change)


def _fell(change: Change) -> bool:
    return change.before is not None and change.after is not None and change.after < change.before


def _lines(comparison: Comparison) -> Iterable[str]:
    a, b = comparison.before, comparison.after
    yield f"{a.graph} on {a.target} → {b.graph} on {b.target}"
    for change in comparison.numbers:
        if change.before is not None or change.after is not None:
            first, second = (_shown(change.what, number) for number in (change.before, change.after))
            yield f"{change.what:18} {first} → {second}{_by(change)}"
    for change in comparison.fused:
        yield f"FUSED   {change.what}: {change.before:.0f} → {change.after:.0f}"
    for change in comparison.missed:
        yield f"MISSED  {change.what}: {change.before:.0f} → {change.after:.0f}"
    if not comparison.fused and not comparison.missed:
        yield "the same fusions, the same misses"
    for name, deviation in comparison.deviations.items():
        yield f"RESULT  {name} differs by {deviation:.1e} of its largest value"


def _shown(what: str, number: float | None) -> str:
    if number is None:
        return "unknown"
    if what.endswith("seconds"):
        return time_text(number)
    return bytes_text(int(number)) if what.startswith(("bytes", "arena")) else f"{number:,.0f}"


def _by(change: Change) -> str:
    if not change.before or change.after is None or not change.is_change:
        return ""
    return f"   {100 * (change.after / change.before - 1):+.1f} %"


__all__ = ["Change", "Comparison"]
