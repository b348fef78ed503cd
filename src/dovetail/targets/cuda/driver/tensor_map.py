"""Tensor maps, the descriptors of the tensor memory accelerator: 128 bytes that the driver encodes for each launch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_int, c_uint32, c_uint64
from typing import Any, Protocol

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.kernels.loops.ir import MAP_BYTES, Kernel, Traversal
from dovetail.kernels.matrix_instruction import LINE_BYTES

_ALIGNED = 64
_WORDS = {1: 0, 2: 1, 4: 2}
"""What the driver calls elements without a sign, by their bytes."""
_LAYOUT = (0, 3, 3, 0)
"""Numbers of the driver: not interleaved, swizzled in lines of 128 bytes, L2 fetches 256 bytes, zeros outside."""


class Caller(Protocol):
    """What calls functions of the driver."""

    def call(self, name: str, *arguments: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class MappedMatrix:
    """A matrix, or images, at an argument of a launch."""

    argument: int
    """The index of its pointer."""
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box_lines: int
    traversal: Traversal | None
    itemsize: int


def matrices_of(kernel: Kernel, number: Callable[[Size], int]) -> Sequence[MappedMatrix]:
    """The matrices of a kernel at the sizes of a run. One without elements has one, which is not read."""
    return [
        MappedMatrix(
            kernel.pointers.index(one.pointer),
            number(one.offset),
            tuple([max(1, number(size)) for size in one.sizes]),
            tuple([number(stride) for stride in one.strides]),
            one.box_lines,
            one.traversal,
            one.itemsize,
        )
        for one in kernel.maps
    ]


class EncodedMap:
    """A matrix, and the memory of its tensor map."""

    __slots__ = ("address", "driver", "matrix", "memory")

    def __init__(self, driver: Caller, matrix: MappedMatrix) -> None:
        self.driver, self.matrix = driver, matrix
        self.memory = (ctypes.c_uint8 * (MAP_BYTES + _ALIGNED))()
        self.address = -(-ctypes.addressof(self.memory) // _ALIGNED) * _ALIGNED

    def encode(self, address: int) -> None:
        """Encode it for the address of its pointer."""
        of, by = self.matrix, self.matrix.traversal
        rank, line = len(of.sizes), LINE_BYTES // of.itemsize
        sizes, strides = (c_uint64 * rank)(*of.sizes), (c_uint64 * (rank - 1))(*of.strides)
        common = (self.address, _WORDS[of.itemsize], rank, address + of.offset, sizes, strides)
        if by is None:
            box, steps = (c_uint32 * rank)(line, of.box_lines), (c_uint32 * rank)(*[1] * rank)
            self.driver.call("cuTensorMapEncodeTiled", *common, box, steps, *_LAYOUT)
            return
        lower, upper = (c_int * (rank - 2))(*by.lower), (c_int * (rank - 2))(*by.upper)
        steps = (c_uint32 * rank)(1, *by.strides, 1)
        self.driver.call("cuTensorMapEncodeIm2col", *common, lower, upper, line, of.box_lines, steps, *_LAYOUT)


__all__ = ["EncodedMap", "MappedMatrix", "matrices_of"]
