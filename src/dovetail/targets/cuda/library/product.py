"""Products that cuBLASLt may compute in the place of our kernels: on which conditions, and what goes with each.

The library reads and writes at addresses that stay: factors that move from run to run are copied to the workspace, and
a kernel of ours writes what has an epilogue, moves, or is not dense.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from math import prod

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused
from dovetail.kernels.gpu.gemm.fma import dtype_of_sums
from dovetail.kernels.gpu.gemm.fragments import Factor
from dovetail.kernels.gpu.gemm.library_result import SOURCE, TARGET, LibraryResult, copy_of
from dovetail.kernels.gpu.gemm.tile_writer import PARTIAL
from dovetail.kernels.loops.gpu_schedule import schedule
from dovetail.kernels.problems.contraction import find_products
from dovetail.plan.plan import Step
from dovetail.targets.cuda.library.call import SPACE, as_kernel
from dovetail.targets.cuda.library.cublaslt import KINDS, Algorithm, MatrixLayout, Problem
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.gpu.launch_fusion.launch_choices import Need
from dovetail.targets.gpu.loops import SHAPE
from dovetail.targets.gpu.select import Selection, finished, kernel_of_step

ALIGNED = 256
"""The bytes that arrays in the workspace start at multiples of, as the library would have it."""

IS_ONE = Need("step_is_one_product", "one product of two operands", "none in the model: it shares its left operand")
HAS_SIZES = Need("sizes_are_known", "rows, columns and depth", "compile it for the sizes that matter: sizes={…}")
HAS_NO_BATCH = Need("product_has_no_batch", "rows that have one stride", "give all products one right operand")
HAS_DTYPE = Need("factors_have_one_dtype", ", ".join(sorted(d.name for d in KINDS)), "cast the factors to one of them")
IS_DENSE = Need(
    "factors_are_dense_along_an_axis", "neighbours along rows or k", "store the factor densely, or a transposed one"
)


@dataclass(frozen=True, slots=True)
class LibraryStep:
    """A step as the library computes it, whichever algorithm it takes."""

    problem: Problem
    before: tuple[GpuKernel, ...]
    """Copies of factors."""
    after: tuple[GpuKernel, ...]
    """The epilogue, if it has a kernel."""
    product: GpuKernel
    end: int
    """The bytes of the workspace that all of these use."""
    is_even: bool
    """Whether the lines of both factors are 16 bytes long, or a multiple of that, as our copies have them."""
    flops: int

    def kernels(self, algorithm: Algorithm, text: str) -> tuple[GpuKernel, ...]:
        """Return all kernels by an algorithm; `text` is the key of that GEMM."""
        product = replace(self.product, code=text, workspace={**self.product.workspace, SPACE: self.end})
        every = (*self.before, product, *self.after)
        return tuple([replace(one, workspace_bytes=self.end + algorithm.workspace) for one in every])


def library_step(step: Step, selection: Selection, moves: Callable[[Value], bool]) -> LibraryStep | Refused:
    """Return a step as the library computes it, or the condition that refuses it; `moves` says whether the address of
    a tensor changes from run to run."""
    contraction = selection.problem(step).once(find_products)
    if isinstance(contraction, Refused):
        return contraction
    if len(contraction.streams) != 1:
        return IS_ONE.refused(f"{len(contraction.streams)} streams of columns")
    dtype, other = contraction.left.dtype, contraction.rights[0].dtype
    if dtype is not other or dtype not in KINDS:
        return HAS_DTYPE.refused(f"{dtype.name} and {other.name}")
    has_epilogue = contraction.products[0] is not contraction.result or len(step.results) > 1
    sums = dtype_of_sums(dtype) if has_epilogue else contraction.result.dtype
    writer = LibraryResult(selection.problem(step), contraction, sums)
    if writer.batch:
        return HAS_NO_BATCH.refused(" × ".join(map(str, writer.batch)))
    left, (right,) = writer.left(), writer.rights()
    sizes = [size for size in (writer.rows, writer.depth, writer.columns) if isinstance(size, int) and size]
    if len(sizes) < 3:
        return HAS_SIZES.refused(f"{writer.rows} × {writer.depth} × {writer.columns}")
    layouts = [_along_k(factor) for factor in (right, left)]
    if layouts[0] is None or layouts[1] is None:
        return IS_DENSE.refused("strides of " + " and ".join(str(f.tensor.strides) for f in (right, left)))
    builder = _Kernels(writer, selection, moves)
    a, b = (
        builder.factor("a", contraction.rights[0], right, along_k=layouts[0]),
        builder.factor("b", contraction.left, left, along_k=layouts[1]),
    )
    # The library's matrices have columns one after the other: it multiplies transposed factors to a transposed result.
    problem = Problem(
        a, b, builder.result(has_epilogue=has_epilogue), transposes_a=layouts[0], transposes_b=not layouts[1]
    )
    product = GpuKernel(as_kernel(("a", "b", "c", SPACE), "c"), "", builder.bindings, builder.workspace)
    evens = [factor.dense_axis(writer.alignment(factor), (dtype,)) for factor in (left, right)]
    flops = 2 * prod(sizes)
    return LibraryStep(problem, tuple(builder.before), tuple(builder.after), product, builder.end, all(evens), flops)


def _along_k(factor: Factor) -> bool | None:
    """Whether neighbours are along k, or along rows; None where neither is, or lines are not apart."""
    if factor.tensor.offset != 0:
        return None
    return next((along_k for along_k in (True, False) if _leading(factor, along_k=along_k) is not None), None)


def _lines(factor: Factor, *, along_k: bool) -> tuple[int, int, int, int]:
    """Elements of a line, how many there are, and the strides between neighbours and between lines."""
    along, across, near, apart = factor.rows, factor.depth, factor.row_stride, factor.k_stride
    if along_k:
        along, across, near, apart = across, along, apart, near
    along, across, near, apart = (n if isinstance(n, int) else -1 for n in (along, across, near, apart))
    return along, across, near, apart


def _leading(factor: Factor, *, along_k: bool) -> int | None:
    """Elements from a line to the next one; None where elements of a line are not neighbours, or lines not apart."""
    item, (along, across, near, apart) = factor.tensor.dtype.itemsize, _lines(factor, along_k=along_k)
    if near != item and along != 1:
        return None
    if across == 1:
        return along
    return apart // item if apart % item == 0 and apart >= along * item else None


@dataclass(slots=True)
class _Kernels:
    """The kernels of a step that the library multiplies for, while they are put together."""

    writer: LibraryResult
    selection: Selection
    moves: Callable[[Value], bool]
    end: int = 0
    """Of the workspace."""
    bindings: dict[str, Value] = field(default_factory=dict[str, Value])
    workspace: dict[str, Size] = field(default_factory=dict[str, Size])
    before: list[GpuKernel] = field(default_factory=list[GpuKernel])
    after: list[GpuKernel] = field(default_factory=list[GpuKernel])

    def factor(self, name: str, view: Value, factor: Factor, *, along_k: bool) -> MatrixLayout:
        """A factor as the library reads it: where it is, or a copy."""
        value, writer, dtype = self.writer.contraction.operand(view), self.writer, view.dtype
        leading, (along, across, *_) = _leading(factor, along_k=along_k), _lines(factor, along_k=along_k)
        assert leading is not None, "it was checked"
        if not self.moves(value):
            self.bindings[name] = value
            return MatrixLayout(dtype, along, across, leading, writer.alignment(factor))
        at = self.workspace[name] = self._room(along * across * dtype.itemsize)
        kernel, tiles = copy_of(factor, along_k=along_k)
        copy = schedule(kernel, tiles, SHAPE)
        self.before.append(finished(copy, {SOURCE: value}, self.selection, {TARGET: at}))
        return MatrixLayout(dtype, along, across, along, ALIGNED)

    def result(self, *, has_epilogue: bool) -> MatrixLayout:
        """Return the tensor that the library writes: the result, or an operand of the epilogue."""
        writer, result = self.writer, self.writer.step.results[0]
        rows, columns, item = writer.rows, writer.columns, result.dtype.itemsize
        assert isinstance(rows, int) and isinstance(columns, int), "it was checked"
        (apart,), near = writer.fronts["y0"], writer.locations(result).strides[-1]
        apart = columns * item if rows == 1 else apart
        lines_are_apart = isinstance(apart, int) and apart % item == 0 and apart >= columns * item
        is_plain = lines_are_apart and (near == item or columns == 1)
        if is_plain and isinstance(apart, int) and not has_epilogue and not self.moves(result):
            self.bindings["c"] = result
            alignment = writer.locations.alignment({"": result})[""]
            return MatrixLayout(writer.sums, columns, rows, apart // item, alignment)
        at = self.workspace["c"] = self._room(rows * columns * writer.sums.itemsize)
        bindings = {name: v for name, v in writer.bindings.items() if isinstance(v, Value)}
        whole = kernel_of_step(
            *(writer.kernel, bindings),
            step=writer.step,
            selection=self.selection,
            workspace={PARTIAL: at},
        )
        self.after.append(whole)
        return MatrixLayout(writer.sums, columns, rows, columns, ALIGNED)

    def _room(self, nbytes: int) -> int:
        at = self.end
        self.end += -(-nbytes // ALIGNED) * ALIGNED
        return at


__all__ = ["HAS_DTYPE", "HAS_NO_BATCH", "HAS_SIZES", "IS_DENSE", "IS_ONE", "LibraryStep", "library_step"]
