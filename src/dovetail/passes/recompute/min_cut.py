"""Minimum cut of a network with integer capacities, by Dinic's algorithm."""

from __future__ import annotations

from collections import deque

UNBOUNDED = 1 << 62
"""A capacity that no cut goes through."""


class Network:
    """Nodes by number, with directed edges; node 0 is the source, node 1 the sink."""

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]
        """For each node the numbers of its edges; the reverse of edge e is e ^ 1."""
        self._to: list[int] = []
        self._left: list[int] = []
        self._capacity: list[int] = []

    def node(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, start: int, end: int, capacity: int) -> int:
        """Add an edge; its number, by which its capacity can be set again."""
        number = len(self._to)
        for node, other, most in ((start, end, capacity), (end, start, 0)):
            self._edges[node].append(len(self._to))
            self._to.append(other)
            self._capacity.append(most)
        return number

    def set(self, edge: int, capacity: int) -> None:
        self._capacity[edge] = capacity

    def sink_side(self) -> set[int]:
        """The nodes on the side of the sink of the minimum cut; of several, the one with fewest nodes there."""
        self._left = list(self._capacity)
        while (level := self._levels()) is not None:
            self._augment(level)
        reached = {self.SINK}
        pending = [self.SINK]
        while pending:
            for edge in self._edges[pending.pop()]:
                node = self._to[edge]
                if self._left[edge ^ 1] and node not in reached:
                    reached.add(node)
                    pending.append(node)
        return reached

    def _levels(self) -> list[int] | None:
        """The distance of each node from the source; None where no path reaches the sink."""
        level = [-1] * len(self._edges)
        level[self.SOURCE] = 0
        pending = deque([self.SOURCE])
        while pending:
            node = pending.popleft()
            for edge in self._edges[node]:
                other = self._to[edge]
                if self._left[edge] and level[other] < 0:
                    level[other] = level[node] + 1
                    pending.append(other)
        return level if level[self.SINK] >= 0 else None

    def _augment(self, level: list[int]) -> None:
        """Fill every path of shortest length, without recursion."""
        at = [0] * len(self._edges)
        path: list[int] = []
        node = self.SOURCE
        while True:
            if node == self.SINK:
                flow = min(self._left[e] for e in path)
                for e in path:
                    self._left[e] -= flow
                    self._left[e ^ 1] += flow
                full = next(i for i, e in enumerate(path) if not self._left[e])
                node = self._to[path[full] ^ 1]
                del path[full:]
                continue
            edges = self._edges[node]
            while at[node] < len(edges):
                edge = edges[at[node]]
                if self._left[edge] and level[self._to[edge]] == level[node] + 1:
                    break
                at[node] += 1
            if at[node] < len(edges):
                path.append(edges[at[node]])
                node = self._to[path[-1]]
            elif path:
                node = self._to[path.pop() ^ 1]
                at[node] += 1
            else:
                return


__all__ = ["UNBOUNDED", "Network"]
