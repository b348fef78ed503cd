"""What joins in a choice: elementwise options that a target runs as one kernel, and what such kernels cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from dovetail.declare.cost import Prices
from dovetail.egraph.problem import Part, Problem, problem_of_graph
from dovetail.ir.graph import Graph


class Joined:
    """The regions of a choice, kept up while it changes: what can be joined is priced with all that stand in a kernel.

    An elementwise class whose readers all stand in one region stands there too; a view that only a region reads says
    where the region reads. So the target joins them later, and so they cost here: what crosses the border, one start.
    """

    def __init__(self, problem: Problem, picks: Sequence[int], readers: Sequence[Collection[int]]) -> None:
        self._problem = problem
        self._options = problem.options
        self._picks = picks
        self._readers = readers
        self._home: dict[int, int] = {}
        """The classes that can be joined, with the one whose result their region writes."""
        self._members: dict[int, set[int]] = {}
        self.prices: dict[int, float] = {}
        """The regions by the class that they write."""
        self._undo: list[tuple[int, int | None]] = []
        self._were: dict[int, float] = {}
        self._dirty: set[int] = set()

    def update(self, touched: Iterable[int]) -> float:
        """Return the change in cost where these classes have other options or other readers than before; readers come
        first.
        """
        self._undo, dirty = [], set[int]()
        self._dirty = dirty
        home = self._home
        # First in, first out, each once: a class is looked at again when its readers are done with.
        queue = deque(touched)
        waiting = set(queue)
        dirty.update([home[c] for c in queue if c in home])
        while queue:
            c = queue.popleft()
            waiting.discard(c)
            old, new = home.get(c), self._home_of(c)
            if new is not None:
                dirty.add(new)
            if old == new:
                continue
            if old is not None:
                dirty.add(old)
            self._undo.append((c, old))
            self._settle(c, new)
            if new is not None:
                below = self._options[c][self._picks[c]].reads
                again = [r for r in below if r not in waiting and self._part(r) is not None]
                queue.extend(again)
                waiting.update(again)
        return self._reprice(dirty)

    def changed(self) -> list[int]:
        """Return the classes of all regions that the last update visited, and those that it took out of one."""
        return [c for root in self._dirty for c in self._members.get(root, ())] + [c for c, _ in self._undo]

    def changed_prices(self) -> dict[int, float]:
        """Return the regions whose price the last update changed, with their new price."""
        return {root: self.prices[root] for root in self._were}

    def unlike(self, other: Joined) -> set[int]:
        """Return the classes of all regions that have other members or another price in another choice."""
        classes: set[int] = set()
        for root in self._members.keys() | other._members.keys():
            here, there = self._members.get(root, set[int]()), other._members.get(root, set[int]())
            if here != there or self.prices.get(root) != other.prices.get(root):
                classes |= here | there
        return classes

    def undo(self) -> None:
        """Take the last update back."""
        for c, old in reversed(self._undo):
            self._settle(c, old)
        self.prices.update(self._were)
        self._undo, self._were = [], {}

    def _part(self, c: int) -> Part | None:
        return self._options[c][self._picks[c]].part

    def _is_step(self, c: int) -> bool:
        part = self._part(c)
        return part is not None and not part.view

    def _settle(self, c: int, home: int | None) -> None:
        old = self._home.pop(c, None)
        if old is not None:
            members = self._members[old]
            members.discard(c)
            if not members:
                del self._members[old]
        if home is not None:
            self._home[c] = home
            self._members.setdefault(home, set()).add(c)

    def _home_of(self, c: int) -> int | None:
        """Return the region of all readers, if there is one; otherwise a region begins here."""
        part = self._part(c)
        if part is None or not self._readers[c]:
            return None
        common: int | None = None
        for reader in self._readers[c]:
            home = self._home.get(reader)
            if home is None or (common is not None and home != common):
                return c
            above = self._part(reader)
            if above is None or (above.view and (home == reader or not part.view)):
                return c
            common = home
        return common

    def _reprice(self, dirty: Iterable[int]) -> float:
        self._were = {}
        change = 0.0
        for root in sorted(dirty):
            old = self.prices.get(root, 0.0)
            new = self._price(root) if root in self._members else 0.0
            if new != old:
                self._were[root] = old
                self.prices[root] = new
                change += new - old
        return change

    def _price(self, root: int) -> float:
        """Return the price of one kernel for all members of a region; a single op is a kernel as it is."""
        members = self._members[root]
        steps = [c for c in members if self._is_step(c)]
        if len(steps) < 2:
            return sum([self._options[c][self._picks[c]].cost for c in sorted(members)])
        flops = 0
        read: dict[int, dict[int, None]] = {}
        for c in steps:
            option = self._options[c][self._picks[c]]
            assert option.part is not None
            flops += option.part.flops
            for r in option.reads:
                if r not in members or not self._is_step(r):
                    read.setdefault(self._base(r, members), {})[r] = None
        return self._problem.region(root, flops, read)

    def _base(self, c: int, members: Collection[int]) -> int:
        """Return the base of a chain of views inside a region."""
        while c in members:
            c = self._options[c][self._picks[c]].reads[0]
        return c


OUTSIDE = -1
"""The reader of the roots: nothing can be joined with it."""


def readers_of(problem: Problem, picks: Sequence[int], live: Iterable[int]) -> list[set[int]]:
    """Return the readers of each class, among those that the roots need."""
    readers: list[set[int]] = [set() for _ in problem.options]
    for root in problem.roots:
        readers[root].add(OUTSIDE)
    for c in live:
        for r in problem.options[c][picks[c]].reads:
            readers[r].add(c)
    return readers


def shares_of(problem: Problem, picks: Sequence[int]) -> dict[int, float]:
    """Return the cost of each kernel by the class that it writes: each class once, and a region as one."""
    live = problem.live(picks)
    joined = Joined(problem, picks, readers_of(problem, picks, live))
    joined.update(reversed(live))
    apart = {c: problem.options[c][picks[c]] for c in live}
    return {c: option.cost for c, option in apart.items() if option.part is None} | joined.prices


def cost_of(problem: Problem, picks: Sequence[int]) -> float:
    """Return the cost per run of everything that the roots need."""
    return sum(shares_of(problem, picks).values())


def graph_seconds(graph: Graph, seconds: Prices) -> float:
    """Return the cost of each run of a graph by the same measure: weight-only work was done before."""
    return cost_of(problem_of_graph(graph, seconds), [0] * len(graph.values))


__all__ = ["OUTSIDE", "Joined", "cost_of", "graph_seconds", "readers_of", "shares_of"]
