"""The machine that this runs on: what LLVM calls its processor, and how wide and how many its vectors are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import llvmlite.binding as _untyped  # pyright: ignore[reportMissingTypeStubs]

from dovetail.errors import OptionError
from dovetail.settings import ISA

llvm: Any = _untyped
_ARM_TRIPLES = ("aarch64", "arm64")


@dataclass(frozen=True, slots=True)
class Host:
    """The machine: its processor's name, what it can do, and how wide its vectors are."""

    triple: str
    cpu: str
    features: str
    vector_bits: int
    vector_registers: int

    @property
    def lanes(self) -> int:
        """Elements of f32 in a vector."""
        return self.vector_bits // 32

    @property
    def sums_bytes(self) -> bool:
        """Whether four products of bytes are added to each of 16 sums at once."""
        return self.vector_bits == 512 and "+avx512vnni" in self.features.split(",")

    @property
    def has_halves(self) -> bool:
        """Whether there are instructions that convert f16."""
        return self.is_arm or "+f16c" in self.features.split(",")

    @property
    def is_arm(self) -> bool:
        return self.triple.startswith(_ARM_TRIPLES)


@dataclass(frozen=True, slots=True)
class Isa:
    """A set of instructions: the processor that has it and no more, what a machine must have, its vectors."""

    cpu: str
    needs: tuple[str, ...]
    vector_bits: int
    vector_registers: int


_X86: Mapping[str, Isa] = MappingProxyType(
    {
        "sse": Isa("x86-64", (), 128, 16),
        "avx2": Isa("x86-64-v3", ("avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"), 256, 16),
        "avx512": Isa("x86-64-v4", ("avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd", "fma", "f16c"), 512, 32),
    }
)
_ARM: Mapping[str, Isa] = MappingProxyType({"neon": Isa("generic", (), 128, 32)})


@cache
def host() -> Host:
    """The machine that this runs on, with the instructions that code may use on it."""
    initialize()
    found: dict[str, bool] = dict(llvm.get_host_cpu_features())
    triple = llvm.get_process_triple()
    asked = os.environ.get(ISA, "")
    return restricted(triple, asked, found) if asked else _whole(triple, found)


def _whole(triple: str, found: Mapping[str, bool]) -> Host:
    bits, registers = _vectors(triple, found)
    features = [llvm.get_host_cpu_features().flatten(), _unwanted(triple, bits)]
    return Host(triple, llvm.get_host_cpu_name(), ",".join(filter(None, features)), bits, registers)


def _unwanted(triple: str, bits: int) -> str:
    """What LLVM is told to leave alone."""
    if triple.startswith(_ARM_TRIPLES):
        # Loops say how many lanes they want, and LLVM remarks on stderr that it has vectors of another kind.
        return "-sve"
    # LLVM likes 256 bits on machines that slowed down at 512; those of today do not.
    return "-prefer-256-bit" if bits == 512 else ""


def restricted(triple: str, asked: str, found: Mapping[str, bool]) -> Host:
    """A machine of which only one set of instructions is used."""
    known = _ARM if triple.startswith(_ARM_TRIPLES) else _X86
    if asked not in known:
        raise OptionError(f"the environment variable {ISA} is {asked!r}", hint=f"use one of {', '.join(known)}")
    isa = known[asked]
    lacking = [name for name in isa.needs if not found.get(name)]
    if lacking:
        raise OptionError(f"the environment variable {ISA} is {asked!r}", hint=f"this machine lacks {lacking[0]}")
    features = [*(f"+{name}" for name in isa.needs), *filter(None, [_unwanted(triple, isa.vector_bits)])]
    return Host(triple, isa.cpu, ",".join(features), isa.vector_bits, isa.vector_registers)


def _vectors(triple: str, found: Mapping[str, bool]) -> tuple[int, int]:
    if triple.startswith(_ARM_TRIPLES):
        return 128, 32
    if found.get("avx512f") and found.get("avx512vl"):
        return 512, 32
    return (256, 16) if found.get("avx2") and found.get("fma") else (128, 16)


@cache
def initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # Tiles write some instructions as they are.
    llvm.initialize_native_asmparser()
