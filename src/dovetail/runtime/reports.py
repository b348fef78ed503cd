"""What writes the reports of a program: its compilation, or another one of the same graph."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dovetail.errors import OptionError

if TYPE_CHECKING:
    from dovetail.report.report import Report


class Reports:
    """Writes reports, perhaps for sizes of symbols."""

    def __init__(self, write: Callable[..., Report] | None, again: Callable[..., Report] | None = None) -> None:
        """`write` may hold a compilation; `again` holds none, and compiles."""
        self._write, self._again = write, again

    def __call__(self, *sizes: Any) -> Report:
        """The report for these sizes of symbols, or for all."""
        if self._write is None:
            raise OptionError("a program that was made without a report", hint="make programs with dovetail.compile")
        return self._write(*sizes)

    def release(self) -> None:
        """Free the compilation: a report that is written later compiles again."""
        if self._again is not None:
            self._write, self._again = self._again, None
            gc.collect()


__all__ = ["Reports"]
