"""Which bytes a simulated GPU prefetches."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from tests.targets.cuda import lockstep

Bytes = dict[tuple[str, int], set[int]]
"""For each pointer and block, places in its memory."""


def prefetched_bytes(monkeypatch: pytest.MonkeyPatch) -> Bytes:
    """Notes what blocks prefetch from now on."""
    asked: Bytes = defaultdict(set)
    prefetch = lockstep.Machine.prefetch

    def noted(self: Any, statement: Any, mask: Any) -> None:
        prefetch(self, statement, mask)
        early, self.is_early = self.is_early, False
        first = self.address(statement.source, statement.source_at, mask)[mask]
        self.is_early = early
        for at, count in zip(first, self.value(statement.nbytes, mask)[mask], strict=True):
            asked[statement.source.pointer, self.number].update(range(int(at), int(at + count)))

    monkeypatch.setattr(lockstep.Machine, "prefetch", noted)
    return asked


__all__ = ["Bytes", "prefetched_bytes"]
