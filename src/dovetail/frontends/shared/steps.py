"""One step of an import: its place in the model and its errors; one error for all operators without a rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from dovetail.errors import DovetailError, LoadError
from dovetail.ir.graph import Builder
from dovetail.ir.origin import Origin


@contextmanager
def imported_step(builder: Builder, op: str, where: str, origins: tuple[Origin, ...] | None) -> Generator[None]:
    """While an operator is imported: its values come from these origins, and its errors name its place.

    Without origins, values come from where those around them come from.
    """
    recorder = builder.recorder
    around = recorder.place
    if origins is not None:
        recorder.place = origins
    try:
        yield
    except DovetailError as error:
        error.where = error.where or where
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise LoadError(f"{op} cannot be imported: {error}", hint="report it with the call", where=where) from error
    finally:
        recorder.place = around


def missing_rules(lacking: Iterable[tuple[str, str]]) -> str:
    """What to say of operators without a rule, each given with its place: how often and where each is used."""
    listed = list(lacking)
    counts = Counter(op for op, _ in listed)
    first = {op: f", first at {where}" if where else "" for op, where in reversed(listed)}
    lines = [f"  {op}: {count} time{'s' * (count > 1)}{first[op]}" for op, count in counts.most_common()]
    what = "1 operator is" if len(counts) == 1 else f"{len(counts)} operators are"
    return "\n".join([f"{what} not supported:", *lines])


__all__ = ["imported_step", "missing_rules"]
