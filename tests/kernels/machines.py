"""Machines that this one need not be, and what LLVM makes of a kernel for them."""

from __future__ import annotations

import re

import pytest

from dovetail.targets.cpu.isa import Host, host
from dovetail.targets.cpu.jit import assembly

NEON = Host("aarch64-unknown-linux-gnu", "neoverse-n1", "", 128, 32)
AVX2 = Host("x86_64-unknown-linux-gnu", "x86-64-v3", "", 256, 16)
VNNI = Host("x86_64-unknown-linux-gnu", "x86-64-v4", "+avx512vnni", 512, 32)
CASCADE_LAKE = Host("x86_64-unknown-linux-gnu", "cascadelake", "", 512, 32)
DOT = Host("aarch64-unknown-linux-gnu", "neoverse-n1", "+dotprod", 128, 32)
MACHINES = {"here": host(), "neon": NEON, "avx2": AVX2}
ALSO_AVX512 = {**MACHINES, "avx512": CASCADE_LAKE}


def code_for(machine: Host, text: str, *, optimize: bool = True) -> str:
    """The assembly of a text for a machine."""
    try:
        return assembly(text, optimize=optimize, here=machine)
    except RuntimeError as error:
        if "No available targets" in str(error):
            pytest.skip(f"this LLVM makes no code for {machine.triple}")
        raise


def loops(code: str) -> list[str]:
    """The innermost loops of an assembly that multiply and add."""
    start: dict[str, int] = {}
    lines = code.splitlines()
    found: list[tuple[int, int]] = []
    for at, line in enumerate(lines):
        label = re.match(r"(\.?L\w+):", line)
        if label:
            start[label[1]] = at
        jump = re.search(r"\s(?:j\w+|b\.?\w+|cbn?z\s+\w+,|tbn?z\s+\w+, \S+)\s+(\.?L\w+)", line)
        if jump and jump[1] in start:
            found.append((start[jump[1]], at))
    inner = [(a, b) for a, b in found if not any(a <= c and d < b for c, d in found if (c, d) != (a, b))]
    bodies = ["\n".join(lines[a : b + 1]) for a, b in inner]
    return [body for body in bodies if products(body)]


def products(code: str) -> int:
    """Instructions that multiply vectors and add."""
    return len(re.findall(r"\bvfmadd\d*ps|\bfmla|\bvpdpbusd|\bsdot", code))


def on_stack(code: str) -> list[str]:
    """Instructions that read from the stack or write to it."""
    return [line for line in code.splitlines() if re.search(r"\(%[re]sp|\[sp\b", line)]


def written_to_stack(code: str) -> list[str]:
    """Instructions that put something on the stack."""
    return [line for line in on_stack(code) if re.search(r"\(%[re]sp\)\s*$|^\s*st", line)]


def summing(loop: str) -> str:
    """A loop from its first product to its last."""
    lines = loop.splitlines()
    at = [i for i, line in enumerate(lines) if products(line)]
    return "\n".join(lines[at[0] : at[-1] + 1])
