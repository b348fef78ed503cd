"""The processor that this runs on: what LLVM calls it, and the device that kernels are generated for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType

from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.kernels.device import CAPABILITIES, Capability, CpuDevice
from dovetail.settings import ISA
from dovetail.targets.cpu.cores import arm_features, available_threads, data_caches, is_arm, x86_features
from dovetail.targets.cpu.tile_permission import tile_state, without_tiles
from dovetail.targets.runtime.building.llvm_calls import llvm

_ARM_TRIPLES = ("aarch64", "arm64")
_NEVER = ("",)
TILES = "amx-tile"
"""LLVM's name of the feature of tiles."""
_NEEDS_X86: Mapping[Capability, tuple[int, Sequence[str]]] = MappingProxyType(
    {
        "amx_bf16": (512, ("amx-bf16", "amx-tile", "avx512bf16")),
        "amx_int8": (0, ("amx-int8", "amx-tile")),
        "avx512_bf16": (512, ("avx512bf16",)),
        "avx_vnni": (256, ("avxvnni",)),
        "byte_pairs": (256, ()),
        "embedded_broadcast": (512, ()),
        "f16_arithmetic": (0, _NEVER),
        "f16_conversion": (0, ("f16c",)),
        "fma_by_lane": (0, _NEVER),
        "i8mm": (0, _NEVER),
        "int8_dot": (0, _NEVER),
        "masked_memory": (256, ()),
        "scale_by_power_of_two": (512, ()),
        "vnni": (512, ("avx512vnni",)),
    }
)
"""By capability: the width of vectors, which AVX-512 alone has at 512 bits, and the features that it needs."""
_NEEDS_ARM: Mapping[Capability, tuple[int, Sequence[str]]] = MappingProxyType(
    {
        **dict.fromkeys(CAPABILITIES, (0, _NEVER)),
        "f16_arithmetic": (0, ("fullfp16",)),
        "f16_conversion": (0, ()),
        "fma_by_lane": (0, ()),
        "i8mm": (0, ("i8mm",)),
        "int8_dot": (0, ("dotprod",)),
    }
)


@dataclass(frozen=True, slots=True)
class Host:
    """The machine: its processor's name, what it can do, and how wide its vectors are."""

    triple: str
    cpu: str
    features: str
    vector_bits: int
    vector_registers: int

    @property
    def device(self) -> CpuDevice:
        """What kernels are generated for."""
        names: Iterable[Capability] = CAPABILITIES
        capabilities = tuple[Capability, ...]([name for name in names if self._has(name)])
        return CpuDevice(self.vector_bits, self.vector_registers, capabilities, data_caches(), available_threads())

    def _has(self, capability: Capability) -> bool:
        """Whether the features, and vectors as wide as its instructions need, give a capability."""
        bits, needed = _NEEDS_ARM[capability] if self.is_arm else _NEEDS_X86[capability]
        return self.vector_bits >= bits and self._enabled.issuperset(needed)

    @property
    def _enabled(self) -> frozenset[str]:
        return frozenset(word[1:] for word in self.features.split(",") if word.startswith("+"))

    @property
    def lanes(self) -> int:
        """Elements of f32 in a vector."""
        return self.vector_bits // 32

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
    features: dict[str, bool] = dict(llvm.get_host_cpu_features())
    triple = llvm.get_process_triple()
    asked = os.environ.get(ISA, "")
    return restricted(triple, asked, features) if asked else _whole(triple, features)


_IN_CPUINFO: Mapping[str, str] = MappingProxyType({"bmi": "bmi1", "lzcnt": "abm", "sse3": "pni", "64bit": "lm"})
"""Features that Linux lists by another name than LLVM's."""
NATIVE = "native"
"""The name of all that this machine has."""


def host_of(name: str) -> Host:
    """The machine that a set of instructions makes, for code that may run elsewhere."""
    if name == NATIVE:
        return host()
    known = _ARM if is_arm() else _X86
    if name not in known:
        raise OptionError(f"there is no set of instructions {name!r}", hint=f"use {', '.join([*known, NATIVE])}")
    initialize()
    return restricted(llvm.get_process_triple(), name, dict.fromkeys(known[name].needs, True))


def needs_of(here: Host) -> tuple[str, ...]:
    """What Linux has to list of a processor that runs the code of a machine."""
    words = [word[1:] for word in here.features.split(",") if word.startswith("+")]
    listed = {_IN_CPUINFO.get(word, "".join(filter(str.isalnum, word))) for word in words}
    known = {_IN_CPUINFO.get(word, word) for isa in _X86.values() for word in isa.needs}
    return tuple(sorted(listed & (x86_features() | known)))


def has_tiles() -> bool:
    """Whether the processor has tiles, which the system may refuse."""
    initialize()
    return bool(llvm.get_host_cpu_features().get(TILES))


@cache
def host_device() -> CpuDevice:
    """The device that kernels are generated for here."""
    return host().device


def _whole(triple: str, has: Mapping[str, bool]) -> Host:
    bits, registers = _vectors(triple, has)
    own = llvm.get_host_cpu_features().flatten()
    if has.get(TILES) and tile_state() != "granted":
        own = without_tiles(own)
    features = [own, *_further(triple), _unwanted(triple, bits)]
    return Host(triple, llvm.get_host_cpu_name(), ",".join(filter(None, features)), bits, registers)


def _further(triple: str) -> list[str]:
    return [f"+{name}" for name in arm_features()] if triple.startswith(_ARM_TRIPLES) else []


def _unwanted(triple: str, bits: int) -> str:
    """Return the features that LLVM must not use."""
    if triple.startswith(_ARM_TRIPLES):
        # Loops say how many lanes they want, and LLVM remarks on stderr that it has vectors of another kind.
        return "-sve"
    # LLVM likes 256 bits on machines that slowed down at 512; those of today do not.
    return "-prefer-256-bit" if bits == 512 else ""


def restricted(triple: str, asked: str, has: Mapping[str, bool]) -> Host:
    """A machine of which only one set of instructions is used."""
    known = _ARM if triple.startswith(_ARM_TRIPLES) else _X86
    if asked not in known:
        raise OptionError(f"the environment variable {ISA} is {asked!r}", hint=f"use one of {', '.join(known)}")
    isa = known[asked]
    lacking = [name for name in isa.needs if not has.get(name)]
    if lacking:
        raise OptionError(f"the environment variable {ISA} is {asked!r}", hint=f"this machine lacks {lacking[0]}")
    features = [*(f"+{name}" for name in isa.needs), *filter(None, [_unwanted(triple, isa.vector_bits)])]
    return Host(triple, isa.cpu, ",".join(features), isa.vector_bits, isa.vector_registers)


def _vectors(triple: str, has: Mapping[str, bool]) -> tuple[int, int]:
    if triple.startswith(_ARM_TRIPLES):
        return 128, 32
    if has.get("avx512f") and has.get("avx512vl"):
        return 512, 32
    return (256, 16) if has.get("avx2") and has.get("fma") else (128, 16)


@cache
def initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # Tiles write some instructions as they are.
    llvm.initialize_native_asmparser()
