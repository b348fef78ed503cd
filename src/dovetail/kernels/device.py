"""A device as data: what code is generated for, and what selection and tiling ask about."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.kernels.matrix_instruction import LANES, MatrixInstruction
from dovetail.kernels.timings.record import GpuTimings, timings_of

Capability = Literal[
    "amx_bf16",
    "amx_int8",
    "avx512_bf16",
    "avx_vnni",
    "byte_pairs",
    "embedded_broadcast",
    "f16_arithmetic",
    "f16_conversion",
    "fma_by_lane",
    "i8mm",
    "int8_dot",
    "masked_memory",
    "scale_by_power_of_two",
    "vnni",
]
CAPABILITIES: Mapping[Capability, str] = MappingProxyType(
    {
        "amx_bf16": "tiles of bf16 products (TDPBF16PS)",
        "amx_int8": "tiles of int8 products (TDPBUSD)",
        "avx512_bf16": "pairs of bf16 products added to f32 lanes (VDPBF16PS)",
        "avx_vnni": "4-way dot products of u8 and s8 in 256-bit vectors (VPDPBUSD)",
        "byte_pairs": "pairs of products of u8 and s8 added to 16-bit lanes, which saturate (VPMADDUBSW)",
        "embedded_broadcast": "an FMA broadcasts a scalar memory operand to all lanes (EVEX {1to16})",
        "f16_arithmetic": "multiply-adds of eight f16 in 128-bit vectors (FMLA of half precision)",
        "f16_conversion": "conversions between f16 and f32 (F16C, FCVT)",
        "fma_by_lane": "an FMA multiplies by one lane of a register (FMLA by element)",
        "i8mm": "2×8 by 8×2 products of int8 (SMMLA)",
        "int8_dot": "4-way int8 dot products in 128-bit vectors (SDOT)",
        "masked_memory": "loads and stores of the lanes of a mask (VMASKMOVPS, EVEX masks)",
        "scale_by_power_of_two": "x · 2^⌊y⌋ and the fraction of y in one instruction each (VSCALEFPS, VREDUCEPS)",
        "vnni": "4-way dot products of u8 and s8 in 512-bit vectors (VPDPBUSD)",
    }
)
"""Every capability by name, and what it is."""


@dataclass(frozen=True, slots=True)
class Caches:
    """Sizes of the data caches in bytes, as the machine reports them, and of a cache line."""

    l1: int = 32 << 10
    l2: int = 1 << 20
    l3: int = 0
    """Shared by all cores; 0 where there is none."""
    line: int = 64

    @property
    def l1_room(self) -> int:
        """The bytes of L1 that tiles are cut for: measured tiles gain nothing from an L1 above 32 KiB."""
        return min(self.l1, 32 << 10)

    @property
    def l2_room(self) -> int:
        """The bytes of L2 that patches and packed pixels are cut for: they gain nothing from an L2 above 1 MiB."""
        return min(self.l2, 1 << 20)


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """A processor: its vectors, what its instructions can do, its caches and threads."""

    vector_bits: int
    registers: int
    """Vector registers."""
    capabilities: tuple[Capability, ...] = ()
    caches: Caches = Caches()
    threads: int = 1
    emulated: bool = False
    """Whether instructions of capabilities are spelled out in plain vector code, so that kernels made for this
    device run, slowly, on one that lacks them."""

    @property
    def lanes(self) -> int:
        """Elements of f32 in a vector."""
        return self.vector_bits // 32

    def has(self, capability: Capability) -> bool:
        """Whether kernels may be shaped for a capability."""
        return capability in self.capabilities

    def emits(self, capability: Capability) -> bool:
        """Whether code may hold the instructions of a capability."""
        return self.has(capability) and not self.emulated


Cooperative: TypeAlias = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU: its architecture, multiprocessors, and what a block of threads may use."""

    architecture: str
    """As the compiler names it, such as sm_90a."""
    multiprocessors: int
    shared_bytes: int
    """Shared memory that one block may take."""
    registers: int = 65_536
    """32-bit registers of a multiprocessor."""
    warp: int = LANES
    """Threads of a warp: they run in lockstep, and exchange registers."""
    threads_per_block: int = 1024
    l2_bytes: int = 0
    hertz: float = 1.98e9
    """Cycles of a multiprocessor in a second, at most."""
    tensor_hertz: float = 0.0
    """Its clock while tensor cores multiply, anywhere on the device; 0 where they do not lower it."""
    matrix_instructions: tuple[MatrixInstruction, ...] = ()
    """Those that kernels may use."""
    dependent_intensity: float = 0.0
    """Operations for each byte up to which all kernels of a program may go for programmatic dependent launches to pay;
    0 where the device has none."""
    converts_fp8: bool = False
    """Whether instructions convert floats of 8 bits, in PTX that its oldest driver reads."""
    cluster: int = 0
    """Blocks of a cluster, which can wait for each other; 0 where there are no clusters."""
    bulk_copies: bool = False
    """Whether one thread can copy many bytes to shared memory, which a barrier there counts."""
    copying_warp: bool = False
    """Whether each block of a persistent kernel has a producer warp, which starts bulk copies and computes nothing."""
    bytes_per_cycle: float = 0.0
    """Bytes that memory can bring to each multiprocessor in a cycle, at most: a warp that copies starts no more than
    these; 0 where it starts all at once."""
    pause: int = 0
    """Cycles after a level of a persistent kernel in which its blocks do not look for words of the next one: words come
    later than that, and loads of those that look too early delay them."""
    cooperative: Cooperative = "auto"
    """Whether layers that repeat become passes of one cooperative (persistent) kernel: where the estimate of that is
    lower than that of launches, wherever they can (on), or nowhere (off)."""
    measured: GpuTimings | None = None
    """Figures of this card that take the place of those of its architecture."""
    sum_cycles: float = float("inf")
    """Cycles to add up the accumulators of a split-K GEMM; infinite where none is split."""
    evict_first: bool = False
    """Whether L2 evicts weights first, and words that blocks send to each other last."""

    @property
    def timings(self) -> GpuTimings:
        """What estimates know of it."""
        return self.measured or timings_of(self.architecture)


__all__ = ["CAPABILITIES", "LANES", "Caches", "Capability", "Cooperative", "CpuDevice", "GpuDevice"]
