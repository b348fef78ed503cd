"""Cycles: which classes of a problem can need each other."""

from __future__ import annotations

from dovetail.egraph.problem import Problem


def components(problem: Problem) -> dict[int, int]:
    """Return the classes that can need each other, by their strongly connected component."""
    options = problem.options
    reads = [
        listed[0].reads if len(listed) == 1 else tuple(dict.fromkeys([r for o in listed for r in o.reads]))
        for listed in options
    ]
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_path: set[int] = set()
    path: list[int] = []
    component: dict[int, int] = {}
    for root in problem.roots:
        work = [(root, 0)] if root not in index else []
        while work:
            c, at = work.pop()
            if at == 0:
                index[c] = low[c] = len(index)
                path.append(c)
                on_path.add(c)
            descend = False
            for position in range(at, len(reads[c])):
                r = reads[c][position]
                if r not in index:
                    work += [(c, position + 1), (r, 0)]
                    descend = True
                    break
                if r in on_path:
                    low[c] = min(low[c], index[r])
            if descend:
                continue
            if low[c] == index[c]:
                at = path.index(c) if path[-1] != c else len(path) - 1
                members = path[at:]
                del path[at:]
                on_path.difference_update(members)
                if len(members) > 1:
                    component.update(dict.fromkeys(members, c))
            if work:
                above = work[-1][0]
                low[above] = min(low[above], low[c])
    return component
