"""A prepared call that comes again with the same weights, as one Python function: only its other arrays are looked at.

Between two calls of a framework, caches are cold, and every line costs three times what it does in a loop: the code is
straight, and made for the call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

from dovetail.dataclass import dataclass
from dovetail.targets.runtime.calls.prepared_call import AddressPatches, PreparedCalls, ShapedCall

RepeatedCall: TypeAlias = Callable[[tuple[Any, ...]], Sequence[Any]]
"""From the arrays, in the order of the inputs, to the results, in the order of the outputs."""


@dataclass(frozen=True, slots=True)
class AddressWrite:
    """A launch argument that points into an array."""

    index: int
    """Of the array, among those that are given."""
    at: int
    """Where the launch argument is in memory."""
    offset: int
    """From the first element, in bytes."""


class FunctionMaker(Protocol):
    """Makes a function of arrays like the given ones, without a reference to the weights.

    It writes where the arrays are, and says yes, if the weights are the same objects in the same memory.
    """

    def __call__(
        self, weights: Mapping[int, Any], arrays: Sequence[Any], writes: Sequence[AddressWrite], /
    ) -> Callable[..., bool]: ...


def repeated(
    calls: PreparedCalls,
    arrays: Sequence[Any],
    weights: Collection[int],
    placed: FunctionMaker,
    otherwise: RepeatedCall,
) -> RepeatedCall | None:
    """Runs the last prepared call again, or `otherwise` where something has changed.

    There is none if that call was not one of these arrays, or if it has results that are not new arrays.
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
    patches = dict(call.inputs)
    inputs = placed(
        {index: arrays[index] for index in weights},
        arrays,
        [write for index in others for write in _writes(call, index, patches.get(index, ()))],
    )
    results = placed(
        {},
        [one.empty() for one in call.new_results],
        [write for index, one in enumerate(call.new_results) for write in _writes(call, index, one.patches)],
    )
    return _function(calls, call, others, fits, inputs, results, otherwise)


def _function(
    calls: PreparedCalls,
    call: ShapedCall,
    others: Sequence[int],
    fits: Callable[..., bool],
    inputs: Callable[..., bool],
    results: Callable[..., bool],
    otherwise: RepeatedCall,
) -> RepeatedCall:
    numbers = range(len(call.new_results))
    # Another run may have given the call other weights, or the workspace other shapes.
    tests = ["space.last is call", "call.starts is starts", f"fits({', '.join(f'arrays[{i}]' for i in others)})"]
    body = [f"y{number} = empty{number}()" for number in numbers]
    body += [f"results({', '.join(f'y{number}' for number in numbers)})"]
    body += [f"if run({', '.join(map(str, call.arguments))}) == {call.count}:"]
    body += [f"    return ({''.join(f'y{number}, ' for number in numbers)})", "status[0] = 0"]
    lines = ["try:", "    space = spaces.pop()", "except IndexError:", "    return otherwise(arrays)"]
    lines += ["try:", f"    if {' and '.join(tests)} and inputs(*arrays):", *[f"        {line}" for line in body]]
    lines += ["finally:", "    spaces.append(space)", "return otherwise(arrays)"]
    scope: dict[str, Any] = {
        "inputs": inputs,
        "results": results,
        "fits": fits,
        "otherwise": otherwise,
        "spaces": calls.workspaces,
        "call": call,
        "starts": call.starts,
        "run": call.run,
        "status": call.status,
        **{f"empty{number}": one.empty for number, one in enumerate(call.new_results)},
    }
    source = "\n    ".join(["def repeat(arrays):", *lines])
    exec(compile(source, f"<{calls.plan.graph.name}>", "exec"), scope)
    return cast(RepeatedCall, scope["repeat"])


def _writes(call: ShapedCall, index: int, patches: AddressPatches) -> list[AddressWrite]:
    """What points into an array."""
    if not patches:
        return []
    words = ctypes.c_int64.from_buffer(call.launch_args)
    return [AddressWrite(index, ctypes.addressof(words) + at * ctypes.sizeof(words), offset) for at, offset in patches]


__all__ = ["AddressWrite", "FunctionMaker", "RepeatedCall", "repeated"]
