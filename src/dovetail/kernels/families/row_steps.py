"""Steps of a region after its anchor, as loops over the finished rows of the anchor's kernel."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, symbol
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.families.map import elementwise
from dovetail.kernels.loops.body import Body, body_above, cast_to, is_known, overwritten_operands, reads
from dovetail.kernels.loops.ir import Expr, Extent, Kernel, Load, Loop, Name, Store, Tensor, sizes_in, stretched
from dovetail.kernels.problems.epilogue import COUNT, PITCH, RESULT, ROWS, RowSteps
from dovetail.kernels.spec import TensorLocations
from dovetail.plan.plan import Step


def steps_above(of: StepProblem[object], anchor: Value, results: tuple[Value, ...] = ()) -> Body | Refused:
    """The steps above an anchor, which make what a region gives unless `results` are named."""
    body = body_above(results or of.value.attrs["body"].results, anchor, of.value.operands, of.locations)
    other = [result for result in body.results if result.shape != anchor.shape]
    if other:
        return Refused("results_have_the_shape_of_the_anchor", str(other[0].type), str(anchor.type))
    if anchor in body.results[:1]:
        return Refused("steps_make_the_first_result", anchor.op.name)
    return body if is_known(body) else Refused("steps_are_compiled", ", ".join(v.op.name for v in body.order))


def row_steps(
    of: StepProblem[object], anchor: Value, body: Body | Refused, axes: tuple[str, ...], form: RowForm
) -> RowSteps | Refused:
    """Steps above an anchor as loops over its rows; elements of a row go along the last axis."""
    if isinstance(body, Refused):
        return body
    if anchor.rank > len(axes):
        return Refused("kernel_has_the_axes_of_the_result", f"{anchor.rank} axes", f"at most {len(axes)}")
    return _Writer(of.step, anchor, of.locations, body, axes, form).steps()


@dataclass(frozen=True, slots=True)
class RowForm:
    """A tile of the loops is one row, an index of the axis `along`."""

    along: str
    lanes: int = 0
    """Lanes of a vector, for rows that may be shorter than what LLVM would unroll."""


class _Writer:
    """The loops of one region while they are put together."""

    def __init__(
        self,
        step: Step,
        anchor: Value,
        locations: TensorLocations,
        body: Body,
        axes: tuple[str, ...],
        form: RowForm,
    ) -> None:
        self.step, self.anchor, self.locations, self.body = step, anchor, locations, body
        self.axes, self.form = axes, form
        self.bindings: dict[str, Value] = {}
        self.strides: dict[str, Size] = {}
        self.at: tuple[Expr, ...] = (Name("row"), Name("column"))

    def steps(self) -> RowSteps:
        rows = Load(Tensor(ROWS, f32, (symbol(PITCH), f32.itemsize)), self.at)
        leaves: dict[Value, Expr] = {self.anchor: cast_to(rows, self.anchor.dtype)}
        overwritten = overwritten_operands(self.step, self.locations)
        first, *more = self.step.results
        target = self._point(RESULT, first, self.locations(first).strides, first.shape)
        below: list[Value] = []
        for view in reads(self.body):
            at = self.body.views[view]
            operand = self.body.arguments[at.root]
            if operand in overwritten:
                below.append(view)
                continue
            tensor = self._point(f"e{len(self.bindings)}", view, at.strides, view.shape, at.offset)
            self.bindings[tensor.pointer] = operand
            leaves[view] = Load(tensor, self.at)
        leaves |= {view: Load(Tensor(RESULT, view.dtype, target.strides), self.at) for view in below}
        targets = [target]
        for i, also in enumerate(more):
            targets.append(self._point(f"d{i}", also, self.locations(also).strides, also.shape))
            self.bindings[f"d{i}"] = also
        exprs = elementwise(self.body.results, leaves)
        stores = tuple([Store(tensor, self.at, e) for tensor, e in zip(targets, exprs, strict=True)])
        body = (Loop("column", Extent(symbol(COUNT)), stores, lanes=self.form.lanes),)
        written = tuple([tensor.pointer for tensor in targets])
        pointers = (ROWS, *(name for name in self.bindings if name not in written), *written)
        kernel = Kernel("epilogue", pointers, written, "row", body, sizes=sizes_in(body))
        return RowSteps(kernel, self.bindings, self.strides, self.axes)

    def _point(
        self, name: str, value: Value, strides: tuple[Size, ...], shape: tuple[Size, ...], offset: Size = 0
    ) -> Tensor:
        """A tensor that is read or written at rows and columns; its strides along all axes become sizes."""
        spread = stretched(strides, shape, self.anchor.shape)
        # An axis that the anchor does not have precedes the last: its index is 0.
        lead, (column,) = spread[:-1], spread[-1:]
        padded = (*lead, *(0,) * (len(self.axes) - len(spread)), column)
        self.strides |= {f"{name}_{axis}": stride for axis, stride in zip(self.axes, padded, strict=True)}
        self.strides[f"{name}_offset"] = offset
        along = self.strides[f"{name}_{self.form.along}"]
        row = 0 if along == 0 else symbol(f"{name}_{self.form.along}")
        last = column if isinstance(column, int) else symbol(f"{name}_{self.axes[-1]}")
        return Tensor(name, value.dtype, (row, last))


__all__ = ["RowForm", "row_steps", "steps_above"]
