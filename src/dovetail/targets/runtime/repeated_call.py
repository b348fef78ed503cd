"""A prepared call that comes again with the same weights, as one Python function: only its other arrays are looked at.

Between two calls of a framework, caches are cold, and every line costs three times what it does in a loop: the code is
straight, and made for the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias, cast

from dovetail.targets.runtime.prepared_call import Call, Patches, PreparedCalls

Repeated: TypeAlias = Callable[[tuple[Any, ...]], Sequence[Any]]
"""From the arrays, in the order of the inputs, to the results, in the order of the outputs."""


def repeated(
    calls: PreparedCalls,
    arrays: Sequence[Any],
    weights: Collection[int],
    stay: Callable[[Sequence[int]], Callable[..., bool]],
    otherwise: Repeated,
) -> Repeated | None:
    """Runs the last prepared call again, or `otherwise` where something has changed.

    There is none if that call was not one of these arrays, or if it has results that are not new arrays. `stay` is
    given the addresses of all arrays, and makes the test whether the weights are the same and have not moved.
    """
    call = calls.workspaces[-1].last if calls.workspaces else None
    like, others = calls.library.like, [index for index in range(len(arrays)) if index not in weights]
    if call is None or not call.is_plain or call.fits is None or not call.fits(*arrays) or not others or like is None:
        return None
    starts = [*map(calls.library.address, arrays)]
    if call.starts != starts:
        return None
    fits = like([arrays[index] for index in others])
    # The others are written in every run: to prepared calls they have moved since.
    call.starts = [start if index in weights else 0 for index, start in enumerate(starts)]
    return _function(calls, call, others, stay(starts), fits, otherwise)


def _function(
    calls: PreparedCalls,
    call: Call,
    others: Sequence[int],
    same: Callable[..., bool],
    fits: Callable[..., bool],
    otherwise: Repeated,
) -> Repeated:
    patches = dict(call.given)
    lines = ["if same(*arrays):", *[f"    x{i} = arrays[{i}]" for i in others]]
    # Another run may have given the call other weights, or the workspace other shapes.
    lines += [f"    if fits({', '.join(f'x{i}' for i in others)}) and spaces:", "        try:"]
    lines += ["            space = spaces.pop()", "        except IndexError:", "            return otherwise(arrays)"]
    lines += ["        try:", "            if space.last is call and call.starts is starts:"]
    body: list[str] = []
    for i in others:
        body += _written(f"x{i}", patches.get(i, ()))
    for number, one in enumerate(call.made):
        body += [f"y{number} = empty{number}()", *_written(f"y{number}", one.patches)]
    body += [f"if run({', '.join(map(str, call.arguments))}) == {call.count}:"]
    body += [f"    return ({''.join(f'y{number}, ' for number in range(len(call.made)))})", "status[0] = 0"]
    lines += [f"                {line}" for line in body]
    lines += ["        finally:", "            spaces.append(space)", "return otherwise(arrays)"]
    scope: dict[str, Any] = {
        "same": same,
        "fits": fits,
        "otherwise": otherwise,
        "spaces": calls.workspaces,
        "call": call,
        "starts": call.starts,
        "args": call.launch_args,
        "address": calls.library.address,
        "run": call.run,
        "status": call.status,
        **{f"empty{number}": one.empty for number, one in enumerate(call.made)},
    }
    source = "\n    ".join(["def repeat(arrays):", *lines])
    exec(compile(source, f"<{calls.plan.graph.name}>", "exec"), scope)
    return cast(Repeated, scope["repeat"])


def _written(array: str, patches: Patches) -> list[str]:
    """Lines that write the address of an array into launch arguments."""
    if not patches:
        return []
    first = [f"start = address({array})"]
    return first + [f"args[{at}] = start + {offset}" if offset else f"args[{at}] = start" for at, offset in patches]


__all__ = ["Repeated", "repeated"]
