"""Addresses of the first loads of a kernel that waits for the one before it, hoisted before that wait.

LLVM computes an address where it is used, and so blocks that had been there for a while began with a hundred cycles of
arithmetic on indices. What moves reads parameters, indices and constants alone: it is the same wherever it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_WAIT = "griddepcontrol.wait;"
_REGISTER = re.compile(r"%(?:rd|rs|r|p)\d+")
_INSTRUCTION = re.compile(r"\t(?P<op>[a-z][\w.]*)\s+(?P<target>%(?:rd|rs|r|p)\d+), (?P<sources>.*);$")
_TARGETS = re.compile(r"\s*(?:@!?%p\d+\s+)?[a-z][\w.:]*\s+(\{.*?\}|%\w+(?:\|%\w+)?)")
_INDEX = re.compile(r"%(?:tid|ctaid)\.x")
_PARAMETER = re.compile(r"\[\w+_param_\d+(?:\+\d+)?\]")
_PURE = frozenset(
    [
        "mov",
        "add",
        "sub",
        "mul",
        "mad",
        "shl",
        "shr",
        "shf",
        "and",
        "or",
        "xor",
        "not",
        "lop3",
        "bfe",
        "bfi",
        "prmt",
        "cvt",
        "cvta",
        "setp",
        "selp",
        "min",
        "max",
    ]
)
_BY_WARPGROUPS = "setmaxnreg", "wgmma."
_LAST = ("bar.sync", "barrier.", "shfl.", "st.global", "mma.")
"""What ends the first loads of a kernel."""


def with_early_addresses(ptx: str) -> str:
    """PTX of a module with each of its kernels changed like that, but none by warpgroups: its start is a small part of
    it, and it has few registers left."""
    if _WAIT not in ptx or any([mark in ptx for mark in _BY_WARPGROUPS]):
        return ptx
    parts = re.split(r"(?m)^(?=(?:\.visible )?\.(?:entry|func))", ptx)
    return "".join([_kernel(part) if part.count(_WAIT) == 1 else part for part in parts])


def _kernel(text: str) -> str:
    lines = text.split("\n")
    at = next(i for i, line in enumerate(lines) if _WAIT in line)
    end = next((i for i in range(at, len(lines)) if lines[i].strip().startswith(_LAST)), len(lines))
    moved, addresses = _moved(lines, at, end)
    if not any([r.startswith("%rd") for r in addresses]):
        return text
    first = at - 1 if "begin inline asm" in lines[at - 1] else at
    chosen, start = {*moved}, lines.index("{") + 1
    declared = "\t.reg .b64 \t%early<2>;\n\t.reg .pred \t%none;"
    rest = [line for i, line in enumerate(lines) if i >= first and i not in chosen]
    here = [lines[i] for i in moved]
    return "\n".join([*lines[:start], declared, *lines[start:first], *here, *_used(addresses), *rest])


def _used(addresses: Sequence[str]) -> list[str]:
    """Instructions that need addresses before the wait, as the assembler would move them back to where they are used.
    The highest bits of an address are 0, which it does not know: nothing stops, also where all tensors are empty."""
    found = ["\tmov.b64 \t%early0, 0;"]
    for one in addresses:
        wide = one if one.startswith("%rd") else "%early1"
        found += [] if wide == one else [f"\tcvt.u64.u32 \t{wide}, {one};"]
        found.append(f"\tor.b64 \t%early0, %early0, {wide};")
    return [*found, "\tsetp.eq.b64 \t%none, %early0, -1;", "\t@%none trap;"]


def _moved(lines: Sequence[str], at: int, end: int) -> tuple[list[int], list[str]]:
    """The lines that addresses of loads need, in their order, of those that may move; and the addresses that they give.

    A register that is written in two places may differ between them: nothing that reads or writes one moves.
    """
    written = Counter([r for line in lines for r in _written(line)])
    known = {r for line in lines[:at] for r in _written(line) if written[r] == 1}
    may: dict[str, tuple[int, list[str]]] = {}
    wanted: dict[str, None] = {}
    for i in range(at + 1, end):
        line = lines[i]
        if line.lstrip().startswith(("ld.global", "cp.async")):
            wanted |= dict.fromkeys([r for place in re.findall(r"\[(.*?)\]", line) for r in _REGISTER.findall(place)])
        found = _INSTRUCTION.match(line)
        if found is None or written[found["target"]] != 1:
            continue
        op, sources = found["op"], _REGISTER.findall(found["sources"])
        rest = _INDEX.sub("", _REGISTER.sub("", found["sources"]))
        is_pure = op.split(".")[0] in _PURE and "%" not in rest
        is_given = op.startswith("ld.param.") and _PARAMETER.fullmatch(found["sources"])
        if (is_pure or is_given) and all([r in known for r in sources]):
            may[found["target"]] = i, sources
            known.add(found["target"])
    need, moved = [*wanted], set[int]()
    while need:
        place = may.get(need.pop())
        if place is not None and place[0] not in moved:
            moved.add(place[0])
            need += place[1]
    return sorted(moved), [r for r in wanted if r in may]


def _written(line: str) -> list[str]:
    """The registers that a line writes, and more where it is not one instruction."""
    if line.lstrip().startswith("{"):
        return _REGISTER.findall(line)
    found = _TARGETS.match(line)
    return [] if found is None else _REGISTER.findall(found[1])


__all__ = ["with_early_addresses"]
