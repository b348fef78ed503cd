"""What changed near a class since it was tried last: where nothing did, trying again would say the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from dovetail.egraph.problem import Option


class Recent:
    """When classes changed, and when each trial was made. A change in a cycle concerns all classes of that cycle."""

    def __init__(
        self,
        options: Sequence[Sequence[Option]],
        readers: Sequence[Collection[int]],
        component: Mapping[int, int],
    ) -> None:
        self._options = options
        self._readers = readers
        self._component = component
        self._changed: dict[int, int] = {}
        self._stirred: dict[int, int] = {}
        """When something in a strongly connected component changed."""
        self._tried: dict[int, int] = {}
        self._now = 0

    def note(self, classes: Iterable[int]) -> None:
        """These classes have other options or other readers now, or their kernels another price."""
        self._now += 1
        for c in classes:
            self._changed[c] = self._now
            home = self._component.get(c)
            if home is not None:
                self._stirred[home] = self._now

    def is_due(self, trial: int, classes: Sequence[int]) -> bool:
        """Whether a trial with these classes is worth making, for the first time or again; it counts as made."""
        last = self._tried.get(trial)
        if last is not None and not any([self._is_near(c, last) for c in classes]):
            return False
        self._tried[trial] = self._now
        return True

    def _is_near(self, c: int, since: int) -> bool:
        """Whether the class, what one of its options reads, or who reads it changed."""
        changed = self._changed
        if changed.get(c, 0) > since or self._stirred.get(self._component.get(c, -1), 0) > since:
            return True
        for reader in self._readers[c]:
            if changed.get(reader, 0) > since:
                return True
        return any([changed.get(r, 0) > since for option in self._options[c] for r in option.reads])
