"""Which kernels of the CPU take elementwise steps into themselves, and on which conditions."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from dovetail import library, ops
from dovetail.declare.backward import backward_name
from dovetail.declare.fused import FusedOp
from dovetail.declare.machine import estimate
from dovetail.ir import leaf
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.families.row_steps import RowForm, row_steps, steps_above
from dovetail.kernels.families.rows import offer_rows
from dovetail.kernels.loops.body import body_of, is_known
from dovetail.kernels.loops.policy import LoopTarget
from dovetail.kernels.problems.attention import (
    attention_call,
    attention_inside,
    attention_of,
    axes_of,
    find_widened,
)
from dovetail.kernels.problems.contraction import Contraction, find_contraction
from dovetail.kernels.problems.convolution import ANCHORS as CONVOLUTIONS
from dovetail.kernels.problems.convolution import Convolution
from dovetail.kernels.problems.epilogue import RowSteps
from dovetail.kernels.spec import TensorLocations
from dovetail.ops.convolution import conv_transpose
from dovetail.ops.region import anchor_of
from dovetail.passes.claims import Anchor, Condition
from dovetail.plan.alias import locate
from dovetail.plan.plan import Step
from dovetail.targets.cpu.attention.policy import reads_halves
from dovetail.targets.cpu.conv.epilogue import Applied, steps_of
from dovetail.targets.cpu.loops import SUPPORT, tiles_for

BY_ROW: tuple[FusedOp[...], ...] = (
    library.softmax,
    library.log_softmax,
    library.layer_norm,
    library.rms_norm,
    library.residual_layer_norm,
    library.residual_rms_norm,
)
"""Ops whose gradients are computed by row."""
DENSE = TensorLocations(lambda value: locate(value, {}), (), target=LoopTarget(SUPPORT, tiles_for(0)))
"""Where tensors are stored as far as passes know: densely, each in memory of its own."""
SHORT = 128
"""Below this k a product loses by an epilogue that reads another tensor of its shape: 7 % at k = 64 on NEON."""
STREAMED_TAPS = 1
"""Taps of a window after which steps read another tensor of the result's size: 2 to 4 % slower with nine."""
FEWEST_ROWS, SMALL = 16, 1 << 16
"""Tiles of a reduction that threads can share, and elements that one thread goes through in no time."""


def _inside(value: Value) -> Value:
    anchor = anchor_of(value.attrs["body"])
    assert anchor is not None, "a region that was made around an anchor"
    return anchor


def _has_one_result(value: Value) -> bool:
    return len(value.attrs["body"].results) == 1


def _has_the_shape_of_the_anchor(value: Value) -> bool:
    shape = _inside(value).shape
    return all(result.shape == shape for result in value.attrs["body"].results)


def _problem(value: Value) -> StepProblem[None]:
    """A step that computes a value of dense operands."""
    return StepProblem(Step(value.op.name, value, "run"), DENSE, None)


def _is_compiled(value: Value) -> bool:
    body = body_of(value, DENSE)
    return is_known(body, lambda v: v.op in (ops.matmul, ops.conv, conv_transpose, ops.part))


def _is_a_contraction(value: Value) -> bool:
    if isinstance(find_contraction(_problem(value)), Contraction):
        return True
    others = [v for v in body_of(value, DENSE).order if not v.op.elementwise]
    return _has_one_result(value) and len(others) == 1 and others[0].op is ops.matmul and not others[0].dtype.is_float


def _is_integer(value: Value) -> bool:
    anchor = _inside(value)
    return anchor.dtype.is_integer and anchor.op is not conv_transpose


def _hides_operands(value: Value) -> bool:
    """A panel has few columns, so that operands come a cache line or two at a time; a long sum hides that."""
    anchor = _inside(value)
    depth = anchor.operands[0].shape[-1]
    if not isinstance(depth, int) or depth >= SHORT:
        return True
    return not _full_operands(value)


def _full_operands(value: Value) -> list[Value]:
    """The operands of the steps that have the shape of the anchor."""
    others = [v for v in value.attrs["body"].values if v.op.elementwise]
    return [x for v in others for x in v.operands if x.op is leaf.ARGUMENT and x.shape == _inside(value).shape]


def _is_a_convolution(value: Value) -> bool:
    """Whether a kernel takes the steps: vector code on sums, or loops over finished rows."""
    if _is_integer(value):
        return _is_compiled(value)
    return not isinstance(_convolution_steps(value), Refused)


def _convolution_steps(value: Value) -> Applied | Refused:
    """How the kernel of a convolution applies the steps."""
    convolution = Convolution.of(value, CONVOLUTIONS)
    if convolution is None:
        return Refused("step_is_a_convolution", value.op.name)
    return steps_of(convolution, _problem(value), RowForm("channel"))


def _is_f32(value: Value) -> bool:
    return _is_integer(value) or _inside(value).dtype is f32


def _reads_pixels(value: Value) -> bool:
    """An operand has an element for each pixel, or one for all pixels of an image: others need a slower kernel."""
    anchor = _inside(value)
    pixels, none = anchor.shape[2:], (1,) * len(anchor.shape[2:])
    # The convolution reads its image itself, widened or not; its stride decides how many pixels that has.
    below = {*walk([anchor])}
    others = [x for v in value.attrs["body"].values if v not in below and v.op.elementwise for x in v.operands]
    read = [(*none, *x.shape)[-len(pixels) :] for x in others if x.op is leaf.ARGUMENT]
    return all(shape in (pixels, none) for shape in read)


def _is_packed(value: Value) -> bool:
    """Several results are written by kernels of packed weights only."""
    convolution = None if _is_integer(value) else Convolution.of(value, CONVOLUTIONS)
    return _has_one_result(value) or (convolution is not None and DENSE.is_bound(convolution.w))


def _rows(value: Value) -> Offer | Refused:
    return offer_rows(_problem(value))


def _is_of_rows(value: Value) -> bool:
    return isinstance(_rows(value), Offer)


def _has_rows_to_share(value: Value) -> bool:
    offer = _rows(value)
    job = offer.build() if isinstance(offer, Offer) else offer
    if isinstance(job, Refused):
        return False
    tiles = estimate(job.tiled.tiles)
    return tiles >= FEWEST_ROWS or tiles * estimate(job.tiled.work) <= SMALL


def _is_an_attention(value: Value) -> bool:
    anchor = attention_inside(value)
    if anchor is None or not isinstance(anchor.op, FusedOp):
        return False
    call = attention_call(value, anchor)
    if isinstance(attention_of(call, anchor.op.arguments(call.operands, call.attrs), DENSE), Refused):
        return False
    return isinstance(_row_steps(value, anchor), RowSteps)


def _row_steps(value: Value, anchor: Value) -> RowSteps | Refused:
    of = _problem(value)
    return row_steps(of, anchor, steps_above(of, anchor), axes_of(anchor), RowForm("row"))


def _widens_keys(value: Value) -> bool:
    """Whether a kernel reads keys and values of f16 as they are: that of few queries does, which reads each once."""
    widened = find_widened(value, DENSE)
    if widened is None:
        return False
    problem = widened.attention({}, DENSE)
    return not isinstance(problem, Refused) and reads_halves(problem)


def _streams_operands(value: Value) -> bool:
    convolution, anchor = None if _is_integer(value) else Convolution.of(value, CONVOLUTIONS), _inside(value)
    if convolution is None or (isinstance(steps := _convolution_steps(value), Applied) and steps.rows is None):
        return True
    filters = convolution.w.shape
    taps = prod(n for n in filters[2:] if isinstance(n, int))
    is_depthwise = anchor.attrs["groups"] == filters[0] and filters[1] == 1
    return taps <= STREAMED_TAPS or is_depthwise or not _full_operands(value)


ONE_RESULT = Condition(
    "kernel_writes_one_result",
    _has_one_result,
    "the value between them is read elsewhere too, and the kernel writes one tensor",
)
SAME_SHAPE = Condition(
    "result_has_the_shape_of_the_anchor",
    _has_the_shape_of_the_anchor,
    "the steps make a tensor of another shape; an epilogue makes one element of each",
)
COMPILED = Condition(
    "steps_are_compiled",
    _is_compiled,
    "a step has no compiled form for its dtype, or reads an operand through a view that strides cannot tell",
)
CONTRACTION = Condition(
    "kernel_is_one_contraction", _is_a_contraction, "the kernel sums up products of one left operand and nothing else"
)
LONG = Condition(
    "sum_hides_the_operands",
    _hides_operands,
    f"the steps read a tensor of the product's shape, and the sum over k < {SHORT} is too short to hide that",
)
F32 = Condition("convolution_is_f32", _is_f32, "convolutions of floats other than f32 run in loops that take no steps")
PIXELS = Condition(
    "operands_have_all_pixels_or_one",
    _reads_pixels,
    "the steps read a row or a column of pixels, which the fast kernels of convolutions do not address",
)
STEPS = Condition("steps_are_compiled", _is_a_convolution, COMPILED.reason)
PACKED = Condition(
    "weights_are_packed", _is_packed, "only kernels with packed weights write several tensors, and these weights vary"
)
ROWS = Condition(
    "steps_go_along_the_rows",
    _is_of_rows,
    "the steps and the reduction do not go through the same rows, or a step is not compiled",
)
SHARED = Condition(
    "reduction_has_rows_to_share",
    _has_rows_to_share,
    "the reduction has few rows, and the steps alone are shared among more threads",
)
ATTENDED = Condition(
    "steps_follow_the_rows_of_attention",
    _is_an_attention,
    "attention has no kernel for its dtypes or sizes, or a step is not compiled",
)
WIDENED = Condition(
    "steps_widen_keys_of_few_queries",
    _widens_keys,
    "attention of few queries takes casts of keys and values from f16, and no other steps before it",
)
STREAMED = Condition(
    "full_operands_follow_small_windows",
    _streams_operands,
    f"the steps read a tensor of the result's size, and after a window of more than {STREAMED_TAPS} tap "
    "the kernel reads a few cache lines of it here and there",
)

GEMM = Anchor(epilogue=(SAME_SHAPE, COMPILED, CONTRACTION, LONG), widens=True)
CONVOLUTION = Anchor(epilogue=(SAME_SHAPE, F32, PIXELS, STREAMED, STEPS, PACKED), widens=True)
ALONG_ROWS = Anchor(epilogue=(ROWS, SHARED), prologue=(ONE_RESULT, ROWS, SHARED))
ATTENTION = Anchor(epilogue=(SAME_SHAPE, ATTENDED), prologue=(ONE_RESULT, WIDENED))

ANCHORS: Mapping[str, Anchor] = {
    **{op.name: GEMM for op in (ops.matmul, library.linear, library.matmul_add, library.swiglu, library.wide_swiglu)},
    **{op.name: CONVOLUTION for op in (ops.conv, library.conv_bias_act, conv_transpose)},
    **{
        op.name: ALONG_ROWS
        for op in (
            library.group_norm,
            library.group_norm_silu,
            ops.reduce_sum,
            ops.reduce_mean,
            ops.reduce_max,
            ops.reduce_min,
            ops.reduce_prod,
        )
    },
    **{name: ALONG_ROWS for op in BY_ROW for name in (op.name, backward_name(op))},
    **{op.name: ATTENTION for op in library.ATTENTIONS},
}
"""By the name of an op."""

__all__ = ["ANCHORS", "BY_ROW"]
