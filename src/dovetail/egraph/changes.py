"""Changes near e-classes: a trial is repeated only where its neighbourhood changed since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from dovetail.egraph.problem import Option


class Changes:
    """When something changed near a class, and when each trial was made.

    Neighbourhood: the class, the classes that its options read, and those whose options read it; all of a cycle.
    """

    def __init__(self, options: Sequence[Sequence[Option]], component: Mapping[int, int]) -> None:
        self._options = options
        self._component = component
        self._changed: dict[int, int] = {}
        self._stirred: dict[int, int] = {}
        """When something in a strongly connected component changed."""
        self._tried: dict[int, int] = {}
        self._now = 0

    @cached_property
    def _users(self) -> list[list[int]]:
        """Return for each class those that have an option which reads it."""
        users: list[list[int]] = [[] for _ in self._options]
        for c, listed in enumerate(self._options):
            for r in dict.fromkeys([r for option in listed for r in option.reads]):
                users[r].append(c)
        return users

    def note(self, classes: Iterable[int]) -> None:
        """Note that these classes have other options or other readers now, or their kernels another price."""
        self._now += 1
        for c in classes:
            if _is_free(self._options[c]):
                continue
            near = dict.fromkeys([c, *self._users[c], *[r for option in self._options[c] for r in option.reads]])
            self._changed.update(dict.fromkeys(near, self._now))
            if c in self._component:
                self._stirred[self._component[c]] = self._now

    def is_due(self, trial: int, classes: Sequence[int]) -> bool:
        """Return whether a trial with these classes is worth making, for the first time or again; it then counts."""
        last = self._tried.get(trial)
        if last is not None and not self._is_near(classes, last):
            return False
        self._tried[trial] = self._now
        return True

    def _is_near(self, classes: Sequence[int], since: int) -> bool:
        changed, stirred, component = self._changed, self._stirred, self._component
        if any([changed.get(c, 0) > since for c in classes]):
            return True
        return bool(stirred) and any([stirred.get(component.get(c, -1), 0) > since for c in classes])


def _is_free(listed: Sequence[Option]) -> bool:
    """Return whether a class is free, so that sharing it saves nothing."""
    return len(listed) == 1 and not (listed[0].reads or listed[0].cost or listed[0].toll)
