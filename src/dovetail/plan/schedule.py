"""Scheduling: an order of the steps in which little memory is held at once.

Finding the best order is hard, so a few orders are tried that are cheap to find, and the best of them is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

from dovetail.errors import GraphError
from dovetail.plan.liveness import Flow


def schedule(flow: Flow) -> list[int]:
    """Return the steps in the order with the lowest peak; as they were written where nothing is lower."""
    best = as_written(flow)
    lowest = peak_of(flow, best)
    least = _least(flow)
    others: tuple[Callable[[Flow], list[int]], ...] = (heaviest_first, freeing_first, last_first)
    for order_by in others:
        if lowest <= least:
            break
        order = order_by(flow)
        late = just_in_time(flow, order)
        for tried in (order, late, shrinking_early(flow, late)):
            peak = peak_of(flow, tried)
            if peak < lowest:
                best, lowest = tried, peak
    return best


def peak_of(flow: Flow, order: Sequence[int]) -> int:
    """Return the most bytes that are held at once; a result in the memory of an operand counts once."""
    weights, left = flow.weights, list(flow.readers)
    live = peak = 0
    for step in order:
        results = flow.makes[step]
        freed = 0
        for tensor in flow.reads[step]:
            left[tensor] -= 1
            if not left[tensor]:
                freed += weights[tensor]
        for tensor in results:
            live += weights[tensor]
        held = live
        for tensor in flow.over[step]:
            if not left[tensor]:
                held -= weights[tensor]
                break
        if held > peak:
            peak = held
        for tensor in results:
            if not left[tensor]:
                freed += weights[tensor]
        live -= freed
    return peak


def _least(flow: Flow) -> int:
    """Return the bound of every order: the largest step alone, less what it may write over."""
    weights = flow.weights
    most = 0
    for results, read, over in zip(flow.makes, flow.reads, flow.over, strict=True):
        held = sum([weights[t] for t in results]) + sum([weights[t] for t in read])
        if held > most:
            most = max(most, held - max([weights[t] for t in over], default=0))
    return most


def as_written(flow: Flow) -> list[int]:
    """Run the first step that can run, again and again: the order of the graph unless a size is bound later."""
    if flow.ordered:
        return list(range(len(flow.after)))
    return _list_schedule(flow, [0] * len(flow.weights))


def heaviest_first(flow: Flow) -> list[int]:
    """Order depth first; of several operands first the one that needs most while computed, less what it leaves."""
    weights = flow.weights
    leaves = [sum([weights[t] for t in results]) for results in flow.makes]
    needs: list[int] = [0] * len(flow.makes)
    ordered: list[list[int]] = []
    for step, before in enumerate(flow.after):
        first = sorted(before, key=lambda b: (leaves[b] - needs[b], b)) if len(before) > 1 else list(before)
        held = need = 0
        for b in first:
            need = max(need, held + needs[b])
            held += leaves[b]
        needs[step] = max(need, held + leaves[step])
        ordered.append(first)
    return _depth_first(flow, ordered)


def last_first(flow: Flow) -> list[int]:
    """Depth first from the last result to the first: a backward pass begins with the layers that are its last."""
    return _depth_first(flow, [list(before) for before in flow.after], backwards=True)


def just_in_time(flow: Flow, order: Sequence[int]) -> list[int]:
    """Return the order with each step that makes more than it frees moved to where its result is first read."""
    weights = flow.weights
    place = [0] * len(order)
    last = [len(order) if count else -1 for count in flow.readers]
    """The place of the last reader of each tensor; what is held to the end has none."""
    counted = [0] * len(last)
    for i, step in enumerate(order):
        place[step] = i
        for tensor in flow.reads[step]:
            counted[tensor] += 1
            if counted[tensor] == flow.readers[tensor]:
                last[tensor] = i
    users: list[list[int]] = [[] for _ in order]
    for step, before in enumerate(flow.after):
        for b in before:
            users[b].append(step)
    early: list[list[int]] = [[] for _ in order]
    """For each place, the steps that moved there, the last one first."""
    for i in range(len(order) - 1, -1, -1):
        step = order[i]
        grows = sum([weights[t] for t in flow.makes[step]]) > sum(
            [weights[t] for t in flow.reads[step] if last[t] == i]
        )
        if grows and users[step]:
            place[step] = min([place[u] for u in users[step]])
            early[place[step]].append(step)
    moved: list[int] = []
    for i, step in enumerate(order):
        moved.extend(reversed(early[i]))
        if place[step] == i:
            moved.append(step)
    return moved


def shrinking_early(flow: Flow, order: Sequence[int]) -> list[int]:
    """Return the order with each step that makes a fraction of what it reads moved to where its operands are there."""
    weights = flow.weights
    place = [0] * len(order)
    index = [0] * len(order)
    for i, step in enumerate(order):
        written, read = sum([weights[t] for t in flow.makes[step]]), sum([weights[t] for t in flow.reads[step]])
        before = flow.after[step]
        place[step] = max([place[b] for b in before]) if before and _SHRINKS * written <= read else i
        index[step] = i
    # Of those at one place the step that was there comes first: all that moved there read it or one after it.
    return sorted(order, key=lambda step: (place[step], index[step]))


_SHRINKS = 8
"""How much smaller than its operands a result is that may wait in their place, as the gradient of a bias does."""


def _depth_first(flow: Flow, ordered: list[list[int]], *, backwards: bool = False) -> list[int]:
    read = {b for before in flow.after for b in before}
    order: list[int] = []
    done = [False] * len(ordered)
    stack = [step for step in reversed(range(len(ordered))) if step not in read]
    if backwards:
        stack.reverse()
    while stack:
        step = stack[-1]
        if done[step]:
            stack.pop()
            continue
        pending = [b for b in ordered[step] if not done[b]]
        if pending:
            stack.extend(reversed(pending))
        else:
            done[step] = True
            order.append(step)
            stack.pop()
    return order


def freeing_first(flow: Flow) -> list[int]:
    """Run of the ready steps the one that takes least memory and frees most."""
    return _list_schedule(flow, flow.weights)


def _list_schedule(flow: Flow, weights: Sequence[int]) -> list[int]:
    """Run the ready step that adds least to memory, the first of equals; its last reader frees a tensor."""
    left, rest = list(flow.readers), _sums_of_readers(flow)
    price = [sum([weights[t] for t in results]) for results in flow.makes]
    for tensor, count in enumerate(left):
        if count == 1 and rest[tensor] >= 0:
            price[rest[tensor]] -= weights[tensor]
    waiting = [len(before) for before in flow.after]
    users: list[list[int]] = [[] for _ in waiting]
    for step, before in enumerate(flow.after):
        for b in before:
            users[b].append(step)
    ready = [(price[step], step) for step, count in enumerate(waiting) if not count]
    heapify(ready)
    order: list[int] = []
    done = [False] * len(waiting)
    while ready:
        cost, step = heappop(ready)
        if done[step] or cost != price[step]:
            continue
        done[step] = True
        order.append(step)
        for tensor in flow.reads[step]:
            left[tensor] -= 1
            last = rest[tensor] = rest[tensor] - step
            if left[tensor] == 1 and last >= 0:
                price[last] -= weights[tensor]
                if not waiting[last]:
                    heappush(ready, (price[last], last))
        for user in users[step]:
            waiting[user] -= 1
            if not waiting[user]:
                heappush(ready, (price[user], user))
    if len(order) != len(waiting):
        raise GraphError("a size is needed before the step that finds it", hint="compute it from other operands")
    return order


def _sums_of_readers(flow: Flow) -> list[int]:
    """Return the sum of the steps that read each tensor: once one is left, it is that one. Below 0 where it is held."""
    sums = [0] * len(flow.readers)
    counted = [0] * len(flow.readers)
    for step, tensors in enumerate(flow.reads):
        for tensor in tensors:
            sums[tensor] += step
            counted[tensor] += 1
    never = -len(flow.reads) * (len(flow.reads) + 1)
    return [s if flow.readers[t] == counted[t] else never for t, s in enumerate(sums)]
