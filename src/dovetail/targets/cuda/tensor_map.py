"""Matrices as the tensor memory accelerator is told of them: 128 bytes that the driver encodes, for each launch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_uint32, c_uint64
from dataclasses import dataclass
from typing import Any, Protocol

from dovetail.codegen.llvm.pipeline import MAP_BYTES
from dovetail.ir.dim import Size
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.loops.pipeline import BOX

_ALIGNED = 64
_WORDS_OF_16_BITS, _AXES = 1, 2
_NOT_INTERLEAVED, _SWIZZLE_128, _L2_256, _ZEROS_OUTSIDE = 0, 3, 3, 0
"""Numbers of the driver: elements, layout in shared memory, what L2 fetches at once, and what is outside."""


class Caller(Protocol):
    """What calls functions of the driver."""

    def call(self, name: str, *arguments: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of 16-bit elements at an argument of a launch."""

    argument: int
    """The index of its pointer."""
    offset: int
    lines: int
    length: int
    pitch: int
    box_lines: int


def matrices_of(kernel: Kernel, number: Callable[[Size], int]) -> Sequence[Matrix]:
    """The matrices of a kernel at the sizes of a run. One without elements has one, which is not read."""
    return [
        Matrix(
            kernel.pointers.index(one.pointer),
            number(one.offset),
            max(1, number(one.lines)),
            max(1, number(one.length)),
            number(one.pitch),
            one.box_lines,
        )
        for one in kernel.maps
    ]


class EncodedMap:
    """A matrix, and the memory of its tensor map."""

    __slots__ = ("address", "driver", "matrix", "memory")

    def __init__(self, driver: Caller, matrix: Matrix) -> None:
        self.driver, self.matrix = driver, matrix
        self.memory = (ctypes.c_uint8 * (MAP_BYTES + _ALIGNED))()
        self.address = -(-ctypes.addressof(self.memory) // _ALIGNED) * _ALIGNED

    def encode(self, address: int) -> None:
        """Encode it for the address of its pointer."""
        of = self.matrix
        self.driver.call(
            "cuTensorMapEncodeTiled",
            self.address,
            _WORDS_OF_16_BITS,
            _AXES,
            address + of.offset,
            (c_uint64 * 2)(of.length, of.lines),
            (c_uint64 * 1)(of.pitch),
            (c_uint32 * 2)(BOX, of.box_lines),
            (c_uint32 * 2)(1, 1),
            _NOT_INTERLEAVED,
            _SWIZZLE_128,
            _L2_256,
            _ZEROS_OUTSIDE,
        )


__all__ = ["EncodedMap", "Matrix", "matrices_of"]
