"""Compiled programs of XLA as text: instructions, and the kernels that they are.

The text is no interface of XLA: what is not understood is left open.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from dovetail.dataclass import dataclass

HloShape: TypeAlias = tuple[int, ...]

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][a-z0-9\-]*)\(")
_TENSOR = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
    r"|\b(?:branch_computations|called_computations)=\{([^}]*)\}"
)
_SCOPES = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_WIDTHS = {"pred": 1, "bf16": 2}

FREE = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id")
)
"""Instructions that run no code."""
CONTROL = frozenset(("while", "conditional", "call", "async-start"))
"""Instructions whose kernels are those of the computations that they call."""
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute", "collective-broadcast")
"""They move bytes between devices; reports of the placement have them."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """A line of a computation."""

    name: str
    result: str
    """The type of its result, as written."""
    opcode: str
    operands: tuple[str, ...]
    """By name; those that are instructions."""
    calls: tuple[str, ...]
    """The computations that it names."""
    scopes: tuple[str, ...]
    """The named scopes that it was traced in, the outermost first; none where XLA made it."""
    line: str


@dataclass(frozen=True, slots=True)
class HloModule:
    """A compiled program."""

    entry: str
    computations: Mapping[str, tuple[Instruction, ...]]


@dataclass(frozen=True, slots=True)
class HloKernel:
    """An instruction that is a kernel of its own, with the scopes of all that is fused into it."""

    name: str
    form: str
    type: str
    scopes: tuple[tuple[str, ...], ...]
    bytes: int | None


def instructions(text: str) -> Iterator[Instruction]:
    """Every instruction of a module, computation by computation."""
    for line in text.splitlines():
        instruction = _instruction(line)
        if instruction is not None:
            yield instruction


def module(text: str) -> HloModule:
    """The computations of a module by name."""
    entry, name = "", ""
    computations: dict[str, list[Instruction]] = {}
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            name = header[2]
            computations[name] = []
            entry = name if header[1] else entry
        elif name and (one := _instruction(line)) is not None:
            computations[name].append(one)
    return HloModule(entry, {name: tuple(some) for name, some in computations.items()})


def kernels(text: str) -> list[HloKernel]:
    """The kernels of a compiled program in the order in which they run; a loop has those of its body once."""
    parsed = module(text)
    return list(_kernels(parsed, parsed.entry, set()))


def _kernels(of: HloModule, name: str, seen: set[str]) -> Iterator[HloKernel]:
    seen.add(name)
    listed = of.computations.get(name, ())
    types = {one.name: one.result for one in listed}
    for one in listed:
        if one.opcode in CONTROL:
            for called in one.calls:
                if called not in seen:
                    yield from _kernels(of, called, seen)
        elif one.opcode not in FREE and not one.opcode.endswith("-done") and not one.opcode.startswith(COLLECTIVES):
            computed = dict.fromkeys(s for s in _scopes(of, one) if s) if one.opcode == "fusion" else {}
            read = [types.get(operand) for operand in dict.fromkeys(one.operands)]
            moved = [None if text is None else bytes_of(text) for text in (one.result, *read)]
            known = [n for n in moved if n is not None]
            yield HloKernel(
                one.name,
                _form(one),
                _spelled(one.result),
                tuple(computed) or ((one.scopes,) if one.scopes else ()),
                sum(known) if len(known) == len(moved) else None,
            )


def _scopes(of: HloModule, fusion: Instruction) -> Iterator[tuple[str, ...]]:
    """The scopes of what a fusion computes, operands first.

    A bitcast has the scope of the kernel that made its operand, a broadcast that of any of its readers:
    neither identifies it.
    """
    for called in fusion.calls:
        for one in of.computations.get(called, ()):
            if one.opcode == "fusion":
                yield from _scopes(of, one)
            elif one.opcode not in FREE and one.opcode != "broadcast":
                yield one.scopes


def _form(one: Instruction) -> str:
    """How a kernel runs, in XLA's own words."""
    if one.opcode == "fusion":
        custom = re.search(r'"fusion_config":\{"kind":"_*(\w+?)(?:_fusion)?"', one.line)
        kind = re.search(r"\bkind=k(\w+)", one.line)
        said = custom[1] if custom else kind[1].lower() if kind else ""
        return f"{said} fusion".strip()
    target = re.search(r'\bcustom_call_target="([^"]*)"', one.line)
    return target[1] if target else one.opcode


def tensors(result: str) -> list[tuple[str, HloShape]]:
    """The tensors of a type as written: dtypes in XLA's words, and shapes."""
    return [(dtype, tuple(int(n) for n in sizes.split(",") if n)) for dtype, sizes in _TENSOR.findall(result)]


def bytes_of(result: str) -> int | None:
    """The bytes of all tensors of a type; None where it has none."""
    parts = tensors(result)
    return sum(math.prod(shape) * width(dtype) for dtype, shape in parts) if parts else None


def width(dtype: str) -> int:
    """Bytes of an element."""
    bits = re.search(r"\d+", dtype)
    return _WIDTHS.get(dtype, int(bits[0]) // 8 if bits and int(bits[0]) >= 8 else 1)


def _spelled(result: str) -> str:
    """A type as the text form of graphs has it."""
    words = [
        f"{'bool' if dtype == 'pred' else re.sub('^s(?=[0-9])', 'i', dtype)}[{', '.join(map(str, shape))}]"
        for dtype, shape in tensors(result)
    ]
    return words[0] if len(words) == 1 else f"({', '.join(words)})"


def _instruction(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    inside, rest = _arguments(line, match.end())
    called = [name for one, many in _CALLED.findall(rest) for name in (one, *re.findall(r"[\w.\-]+", many)) if name]
    named = _SCOPES.search(rest)
    # The outermost scope is the function of JAX.
    scopes = tuple(re.sub(r"\\(.)", r"\1", named[1]).split("/")[1:]) if named else ()
    return Instruction(
        match[1], match[2], match[3], tuple(re.findall(r"%([\w.\-]+)", inside)), tuple(called), scopes, line
    )


def _arguments(line: str, start: int) -> tuple[str, str]:
    """What stands in the brackets that open before a position, and what follows them."""
    depth = 1
    for at in range(start, len(line)):
        depth += (line[at] == "(") - (line[at] == ")")
        if not depth:
            return line[start:at], line[at + 1 :]
    return line[start:], ""


__all__ = [
    "COLLECTIVES",
    "HloKernel",
    "HloModule",
    "Instruction",
    "bytes_of",
    "instructions",
    "kernels",
    "module",
    "tensors",
    "width",
]
