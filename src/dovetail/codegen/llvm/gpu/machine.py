"""What a GPU's back end of LLVM is called by: the intrinsics that the printer of any GPU needs of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.gpu.approximations import Approximations
from dovetail.ir.dtype import DType
from dovetail.kernels.device import LANES
from dovetail.kernels.matrix_instruction import MatrixInstruction

GLOBAL, SHARED = 1, 3
"""Address spaces, which NVIDIA and AMD number alike."""
DYNAMIC = "dynamic_shared"
"""The shared memory whose size a launch gives."""
Register: TypeAlias = Literal["thread", "block", "blocks"]
"""The number of a thread in its block and of a block in the grid, and how many blocks there are."""


class Machine(ABC):
    """One architecture. Every method writes instructions, and gives the names of their results."""

    architecture: str
    lanes: int = LANES
    """Threads of a warp."""
    rounds_to_bf16: bool = False
    """Whether one of NVIDIA's instructions rounds f32 to bf16."""
    scope: str = ""
    """The scope of an atomic update that all blocks see."""
    private: str = ""
    """The address space in which LLVM allocates what a thread has for itself, where that is not 0."""
    approximations: Approximations
    """Functions of f32 to the accuracy of 16-bit floats."""
    functions: Mapping[str, Callable[..., str]]
    """The ops of the loop language that GPUs alone have."""

    @abstractmethod
    def header(self) -> str:
        """How a module begins."""

    @abstractmethod
    def number(self, t: Builder, register: Register) -> str:
        """A special register, an i32."""

    @abstractmethod
    def barrier(self, t: Builder) -> None:
        """All threads of a block wait for each other, and see what others wrote."""

    @abstractmethod
    def warp_barrier(self, t: Builder) -> None:
        """The same of the lanes of a warp."""

    @abstractmethod
    def from_partner(self, t: Builder, word: str, distance: int) -> str:
        """The i32 of the lane whose number differs in one bit."""

    @abstractmethod
    def from_lane(self, t: Builder, word: str, lane: str) -> str:
        """The i32 of the lane with a number, an i32."""

    @abstractmethod
    def ballot(self, t: Builder, x: str, dtype: DType) -> str:
        """The i1 of all lanes as the bits of an integer."""

    @abstractmethod
    def copy(self, t: Builder, target: str, source: str, inside: str, nbytes: int) -> None:
        """Start to copy bytes to shared memory, or zeros where an i1 does not hold."""

    @abstractmethod
    def commit(self, t: Builder) -> None:
        """The copies since the last group are a group."""

    @abstractmethod
    def await_copies(self, t: Builder, pending: int) -> None:
        """Wait until at most some groups of copies are left."""

    @abstractmethod
    def prefetch(self, t: Builder, source: str, nbytes: str) -> None:
        """Bring bytes, an i64, to the cache of the device."""

    @abstractmethod
    def multiply(self, t: Builder, by: MatrixInstruction, left: str, right: str, sums: str) -> None:
        """Add a product of matrices to sums, by a matrix instruction; all are private arrays."""


__all__ = ["DYNAMIC", "GLOBAL", "SHARED", "Machine", "Register"]
