"""How many attentions a program of torch has: as one operator, or as a softmax of scores between two products."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, cast

from dovetail.frontends.torch.exported import Call, Exported, Ref

WHOLE = frozenset(
    {
        "aten.scaled_dot_product_attention.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "higher_order.flex_attention",
    }
)
_PRODUCTS = frozenset({"matmul", "bmm", "baddbmm", "einsum", "mm"})
_SOFTMAX = frozenset({"softmax", "_softmax"})
_MOVED = {"view", "reshape", "_unsafe_view", "expand", "transpose", "permute", "unsqueeze", "squeeze", "slice", "cat"}
_COPIED = {"clone", "_to_copy", "to", "type_as", "copy", "dropout", "contiguous", "getitem", "alias"}
_ON = frozenset(_MOVED | _COPIED)
"""What may stand between the weights of a softmax and the product that reads them."""
_BACK = _ON | {"add", "mul", "div", "sub", "masked_fill", "where", "tanh"}
"""What may stand between a product and the softmax of its scores."""


def attention_calls(program: Exported) -> int:
    """The attentions that a program calls."""
    made = {call.name: call for call in program.calls}
    users: defaultdict[str, list[Call]] = defaultdict(list)
    for call in program.calls:
        for name in _refs((call.arguments, tuple(call.keywords.values()))):
            users[name].append(call)
    whole = sum(call.op in WHOLE for call in program.calls)
    written = sum(
        _kind(call) in _SOFTMAX and _reaches_back(call, made) and _reaches_on(call, users) for call in program.calls
    )
    return whole + written


def _kind(call: Call) -> str:
    """The name of an operator; one that works in place has the name of the other."""
    return call.op.removeprefix("aten.").partition(".")[0].removesuffix("_")


def _refs(given: Any) -> Iterator[str]:
    if isinstance(given, Ref):
        yield given.name
    elif isinstance(given, list | tuple):
        for item in cast("list[Any]", given):
            yield from _refs(item)


def _reaches_back(call: Call, made: dict[str, Call]) -> bool:
    """Whether scores of a product reach a softmax."""
    pending, seen = [made[n] for n in _refs(call.arguments) if n in made], set[str]()
    while pending:
        one = pending.pop()
        if _kind(one) in _PRODUCTS:
            return True
        if one.name not in seen and _kind(one) in _BACK:
            seen.add(one.name)
            pending += [made[n] for n in _refs(one.arguments) if n in made]
    return False


def _reaches_on(call: Call, users: dict[str, list[Call]]) -> bool:
    """Whether a product reads the weights that a softmax gives."""
    pending, seen = list(users[call.name]), set[str]()
    while pending:
        one = pending.pop()
        if _kind(one) in _PRODUCTS:
            return True
        if one.name not in seen and _kind(one) in _ON:
            seen.add(one.name)
            pending += users[one.name]
    return False
