"""Steps of a region on the finished rows of a convolution, the same in every variant.

A variant stores its results, as it finishes them anyhow, in rows of its workspace, and calls the epilogue on these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, TypeVar

from dovetail.codegen.llvm.arguments import Arguments
from dovetail.codegen.llvm.handles import Int, Ptr
from dovetail.codegen.llvm.kernel import SCRATCH, WORDS
from dovetail.codegen.llvm.once import HEAD
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.families.row_steps import row_steps
from dovetail.kernels.problems.convolution import Convolution
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.kernels.problems.region_steps import AXES
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.row_epilogue import WORDS_REGION, RowWriter, more, row_epilogue, words_of

ROWS = "rows"
"""The part of the workspace for finished rows, in variants that have no other place for them."""

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class WithRows:
    """A convolution with the code of its steps on rows, if it has such, and the functions that its kernels call."""

    convolution: Convolution
    shared: tuple[SharedFunction, ...] = ()


def with_rows(found: Convolution, of: StepProblem[CpuDevice]) -> WithRows | Refused:
    """The convolution of a step with the code of its steps on rows."""
    if not found.has_row_steps:
        return WithRows(found)
    assert found.call is not None, "only a region has steps"
    # The rows of a depthwise kernel are long, and LLVM unrolls its loop as it likes.
    lanes = 0 if found.w.shape[1] == 1 and int(found.attrs["groups"]) > 1 else of.device.lanes
    steps = row_steps(of, found.call, AXES, "channel", lanes)
    if isinstance(steps, Refused):
        return steps
    rows, function = row_epilogue(steps)
    return WithRows(replace(found, rows=rows, row_steps=steps), (function,))


def arguments_of(kind: type[A], epilogue: Epilogue, *residual: str, without: Iterable[str] = ()) -> Arguments[A]:
    """The arguments of a variant: with or without bias, residual and its sizes, and what steps on rows need."""
    absent = epilogue.absent(*residual) | set(without)
    if epilogue.rows is None and any(f.name == ROWS for f in fields(kind)):  # pyright: ignore[reportArgumentType]
        absent |= {ROWS}
    return Arguments(kind, absent, HEAD, more(epilogue.rows))


def row_regions(epilogue: Epilogue, rows: Size | None = None) -> dict[str, Size]:
    """The parts of the workspace that steps on rows need: `rows` bytes of finished rows, in variants that ask."""
    if epilogue.rows is None:
        return {}
    words: dict[str, Size] = {WORDS_REGION: words_of(epilogue.rows)}
    return words if rows is None else words | {ROWS: rows}


def writer_of(t: VectorBuilder, arguments: Arguments[Any], epilogue: Epilogue, y: Ptr) -> RowWriter | None:
    """What calls the epilogue, after the arguments of a kernel were loaded."""
    return RowWriter.of(t, arguments, epilogue.rows, WORDS, SCRATCH, y)


@dataclass(frozen=True, slots=True)
class RowTarget:
    """Where sums are transposed to before the epilogue reads them."""

    writer: RowWriter
    rows: Ptr

    @staticmethod
    def of(writer: RowWriter | None, rows: Ptr) -> RowTarget | None:
        return None if writer is None else RowTarget(writer, rows)

    def write(self, t: VectorBuilder, pitch: Int, filters: Int, pixels: Int, at: tuple[Int, Int, Int]) -> None:
        """Apply the steps to some filters, at an image, a filter and a pixel."""
        image, channel, pixel = at
        corner = {"image": image, "channel": channel, "column": pixel}
        self.writer.write(t, self.rows, pitch, filters, pixels, corner)


__all__ = ["ROWS", "RowTarget", "arguments_of", "row_regions", "with_rows", "writer_of"]
