"""What the CUDA target keeps. `targets/gpu/select.py` says which of these have kernels."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from dovetail import library, ops
from dovetail.declare.cost import Machine, Peak
from dovetail.declare.fused import FusedOp
from dovetail.declare.machine import HostStep
from dovetail.ir.dtype import ALL as EVERY
from dovetail.ir.dtype import NARROW, bf16, c64, f16, f32, f64
from dovetail.ir.value import Value
from dovetail.kernels.gpu.attention.row import has_one_query
from dovetail.kernels.gpu.policy import FMA_WIDEST, ROTATED_QUERIES, WIDEST
from dovetail.kernels.timings.record import DEFAULT, timings_of
from dovetail.ops.region import region
from dovetail.passes.claims import Claims, Condition
from dovetail.passes.lowerings.control import is_rewritten
from dovetail.passes.memory_rules import ELEMENTWISE, ELEMENTWISE_REGION, PRODUCT_EPILOGUE, UPDATE, MemoryRules
from dovetail.passes.regions import RegionLimits
from dovetail.targets.claimed import EVERYWHERE, PACKED_BLOCKS, TRANSPOSED, UNSEEN
from dovetail.targets.gpu.anchors import ANCHORS
from dovetail.targets.gpu.images import CHANNELS_LAST

_REWRITTEN = frozenset({"dot", "grouped_matmul", "grouped_outer"})
_CONTROL = ("if", "while", "scan")
MOST_UNROLLED = 64
"""Copies of a loop's body that become kernels; longer loops run on the host."""


def _tensor_cores_have(value: Value) -> bool:
    return value.dtype in (bf16, f16)


def _products_have(value: Value) -> bool:
    return _tensor_cores_have(value) or has_one_query(value) or _has_queries(value)


def _has_queries(value: Value) -> bool:
    """Whether an attention of f32 has a kernel of multiply-adds."""
    q, k, v, *_ = value.operands
    widths = [x.shape[-1] for x in (q, v)]
    is_narrow = all([isinstance(size, int) and size <= FMA_WIDEST for size in widths])
    return is_narrow and q.shape[-2] != 1 and all([x.dtype is f32 for x in (q, k, v)])


def _features_fit(value: Value) -> bool:
    sizes = [v.shape[-1] for v in value.operands[:3]]
    return all(isinstance(size, int) and size <= WIDEST for size in sizes)


def _queries_are_few(value: Value) -> bool:
    queries = value.operands[0].shape[-2]
    return isinstance(queries, int) and queries <= ROTATED_QUERIES


_FEATURES_FIT = Condition(
    "features_fit_registers", _features_fit, f"the kernel keeps at most {WIDEST} features of a head"
)
_ATTENDED = (
    UNSEEN,
    Condition(
        "products_have_the_dtype",
        _products_have,
        f"f16 and bf16, and f32 with up to {FMA_WIDEST} features; cast the inputs to one of them",
    ),
    _FEATURES_FIT,
)


_TENSOR_CORES_HAVE = Condition(
    "tensor_cores_have_the_dtype", _tensor_cores_have, "the kernel multiplies f16 or bf16; cast the inputs to one"
)
_ROTATED = Condition(
    "queries_are_few",
    _queries_are_few,
    f"each block would rotate all keys again; with more than {ROTATED_QUERIES} queries they are rotated before",
)
_CARD = timings_of(DEFAULT).card
_PRODUCTS = ("contract", "conv")
_TENSOR_CORES = tuple(Peak(kind, dtype, _CARD.tensor_flops) for kind in _PRODUCTS for dtype in ("bf16", "f16"))
_WIDE = tuple(Peak(kind, "f64", _CARD.f64_flops) for kind in (*_PRODUCTS, "map"))
MACHINE = Machine(
    flops_per_second=_CARD.f32_flops,
    bytes_per_second=_CARD.bytes_per_second,
    launch_seconds=_CARD.launch_seconds,
    peaks=(*_TENSOR_CORES, *_WIDE),
    host_step=HostStep(seconds=_CARD.host_seconds, bytes_per_second=_CARD.host_bytes_per_second),
    # A residual that a product adds leaves a norm that the next product scales its sums by, or that has no launch.
    joined=(library.rms_norm.name,),
)
"""A card as prices see it, before one is calibrated."""


_ON_HOST = Condition(
    "runs_on_the_host",
    lambda value: not is_rewritten(value, MOST_UNROLLED),
    f"both branches of an if, and up to {MOST_UNROLLED} trips of a loop, are kernels",
)


def _has_code(value: Value) -> bool:
    """Whether kernels have every step of an elementwise value: a few functions of f64 run on the host."""
    if all([v.dtype is not f64 for v in value.operands]):
        return True
    from dovetail.kernels.loops.body import steps_without_code  # only models in f64 need it
    from dovetail.targets.gpu.loops import LOOPS

    return not steps_without_code(value, LOOPS.scalars)


def _merged(kind: Hashable) -> Hashable:
    """Blocks whose scales are integers times an f16 are units of one layout, whatever their format is."""
    from dovetail.kernels.gpu.blocks.units import is_nested  # only models with blocks need it

    return "units" if isinstance(kind, str) and is_nested(kind) else kind


def claims(declared: Iterable[FusedOp[...]] = ()) -> Claims:
    """The claims; the user's own ops are expanded, since nothing generates kernels for them here."""
    return CLAIMS


CLAIMS = Claims(
    target="cuda",
    machine=MACHINE,
    native={
        **{op.name: () for op in ops.ALL if op.name not in _REWRITTEN},
        **{op.name: () for op in EVERYWHERE},
        region.name: (),
        **dict.fromkeys(_CONTROL, (_ON_HOST,)),
        ops.conv_transpose.name: (TRANSPOSED,),
        library.attention.name: _ATTENDED,
        library.dequantise_blocks.name: (PACKED_BLOCKS,),
        library.rope_attention.name: (UNSEEN, _TENSOR_CORES_HAVE, _FEATURES_FIT, _ROTATED),
    },
    dtypes=tuple(d for d in EVERY if d is not c64),
    regions=RegionLimits(steps=32, inputs=16, apart=NARROW, has_code=_has_code),
    merges_kinds=_merged,
    unrolls_at_most=MOST_UNROLLED,
    batches_regions=True,
    anchors=ANCHORS,
    broadcasts="explicit",
    memory=MemoryRules(
        in_place=(ELEMENTWISE, ELEMENTWISE_REGION, PRODUCT_EPILOGUE, UPDATE),
        channels_last=CHANNELS_LAST,
        strided_results=frozenset({library.attention.name, library.rope_attention.name}),
        seen_through=frozenset({library.dequantise_blocks.name}),
    ),
)
