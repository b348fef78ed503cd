"""What the CPU target keeps: every primitive but general dot, and the fused ops that one kernel can serve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dovetail import library, ops
from dovetail.declare.backward import backward_name
from dovetail.declare.fused import FusedOp
from dovetail.ir.dtype import ALL as EVERY
from dovetail.ir.value import Value
from dovetail.kernels.problems.attention import differentiates_by_head
from dovetail.ops.convolution import conv_transpose
from dovetail.ops.region import region
from dovetail.passes.claims import Claims, Condition
from dovetail.passes.lowerings.narrow_conv import is_narrow
from dovetail.passes.lowerings.window_products import multiplies_windows
from dovetail.passes.memory_rules import (
    ELEMENTWISE,
    ELEMENTWISE_REGION,
    PRODUCT_EPILOGUE,
    SEVERAL_RESULTS,
    UPDATE,
    MemoryRules,
)
from dovetail.passes.regions import RegionLimits
from dovetail.targets.claimed import EVERYWHERE, PACKED_BLOCKS, TRANSPOSED, UNSEEN
from dovetail.targets.cpu.anchors import ANCHORS, BY_ROW
from dovetail.targets.cpu.gemm.int8.tile import byte_tile_of
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.measure.calibration import BUILT_IN


def _multiplies_in_place(value: Value) -> bool:
    from dovetail.targets.cpu.conv.of_a_run import multiplies_in_place  # few models train convolutions

    return multiplies_in_place(value, host_device())


_REWRITTEN = frozenset({"dot"})
_WIDE = Condition(
    "convolution_is_not_of_16_bit_floats",
    lambda value: not is_narrow(value),
    "kernels with register tiles convolve f32; operands are widened, and the result is rounded once",
)
_IN_ONE_KERNEL = Condition(
    "attention_differentiates_by_head",
    differentiates_by_head,
    "the kernel computes scores again, without a softcap, in f32, and gives each head of keys and values to one thread",
)
_OF_A_RUN = Condition(
    "filters_are_bound_or_multiplied_in_place",
    lambda value: not multiplies_windows(value) or _multiplies_in_place(value),
    "short rows of pixels are copied for a product, whose kernel packs filters that only a run knows",
    strict=False,
)


def _has_kernel(value: Value) -> bool:
    from dovetail.targets.cpu.of_a_body import has_kernel  # few compile with ops of their own

    return has_kernel(value)


_OF_ITS_BODY = Condition(
    "one_kernel_computes_the_body",
    _has_kernel,
    "no kernel of the cpu computes its body as one: it is spelled out, and other rules see its ops",
    early=True,
)
"""Of ops that a user declared."""


def claims(declared: Iterable[FusedOp[...]] = ()) -> Claims:
    """The claims for a vocabulary with the user's own ops: kernels are generated from some of their bodies."""
    own = [name for op in declared for name in (op.name, backward_name(op))]
    native = {**CLAIMS.native, **{name: (_OF_ITS_BODY,) for name in own}}
    return replace(CLAIMS, native=native, multiplies_bytes=byte_tile_of(host_device()) is not None)


CLAIMS = Claims(
    target="cpu",
    machine=BUILT_IN,
    native={
        **{op.name: () for op in ops.ALL if op.name not in _REWRITTEN},
        **{op.name: () for op in EVERYWHERE},
        library.attention.name: (UNSEEN,),
        library.rope_attention.name: (UNSEEN,),
        library.sink_attention.name: (),
        **{name: () for op in BY_ROW for name in (op.name, backward_name(op))},
        library.log_sum_exp.name: (),
        region.name: (),
        conv_transpose.name: (TRANSPOSED,),
        ops.conv.name: (_WIDE, _OF_A_RUN),
        library.conv_bias_act.name: (_WIDE,),
        library.dequantise_blocks.name: (PACKED_BLOCKS,),
        backward_name(library.attention): (_IN_ONE_KERNEL,),
    },
    dtypes=EVERY,
    # LLVM takes quadratic time for more pointers, and for longer expressions.
    regions=RegionLimits(steps=1024, inputs=128),
    memory=MemoryRules(
        in_place=(ELEMENTWISE, ELEMENTWISE_REGION, SEVERAL_RESULTS, PRODUCT_EPILOGUE, UPDATE),
        strided_results=frozenset({*(op.name for op in library.ATTENTIONS), backward_name(library.attention)}),
        seen_through=frozenset({library.dequantise_blocks.name, ops.cast.name}),
    ),
    anchors=ANCHORS,
)
