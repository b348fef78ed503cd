"""The report: a record that shows itself as text."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.report.record import Record
from dovetail.report.text import as_text, time_text


@dataclass(frozen=True, slots=True)
class Report(Record):
    """What fused, what did not and why, and what both cost."""

    @property
    def summary(self) -> str:
        """One line."""
        host = sum(k.on_host for k in self.kernels)
        return (
            f"{self.graph} on {self.target}: {self.nodes_before} nodes → {len(self.kernels)} kernels, "
            f"{len(self.fused)} fused, {len(self.missed)} missed, predicted {time_text(self.predicted_seconds)}"
            + (f", {host} on the host" if host else "")
        )

    def __str__(self) -> str:
        return as_text(self)
