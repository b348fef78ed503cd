"""Compiled plans as bytes: launches with what their pointers point to, and the text of each kernel, such as PTX."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import TypeAlias

from dovetail.kernels.gpu.blocks.packed_blocks import PackedBlocks
from dovetail.kernels.gpu.blocks.packed_tiles import PackedTiles
from dovetail.kernels.gpu.blocks.units import Units
from dovetail.kernels.gpu.conv.packed_filters import DepthwiseByTap, FiltersByTap, FoldedFilters
from dovetail.kernels.gpu.gemv.packed_matrix import Transposed
from dovetail.kernels.loops.ir import Kernel, Launch, TensorMap, Traversal
from dovetail.plan.plan import Plan
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.runtime.building.serial import JsonWriter, NotSerializable, Reader, read_sizes
from dovetail.targets.runtime.registry import Registry

_LENGTH = struct.Struct("<Q")
RECORDS = Registry(
    {
        "gpu.kernel": GpuKernel,
        "loops": Kernel,
        "launch": Launch,
        "tensor_map": TensorMap,
        "traversal": Traversal,
        "gpu.pack.blocks": PackedBlocks,
        "gpu.pack.by_tap": FiltersByTap,
        "gpu.pack.depthwise": DepthwiseByTap,
        "gpu.pack.folded": FoldedFilters,
        "gpu.pack.tiles": PackedTiles,
        "gpu.pack.transposed": Transposed,
        "gpu.units": Units,
    }
)
"""The dataclasses that a stored plan may hold."""

StoredSteps: TypeAlias = tuple[Kernels, ...]


def to_bytes(plan: Plan, steps: StoredSteps, ptx: dict[str, str]) -> bytes | None:
    """The kernels of each step of the run phase, whose texts are PTX; None where they cannot be spelled."""
    writer = JsonWriter({value: index for index, value in enumerate(plan.graph.values)}, RECORDS)
    numbers = {text: number for number, text in enumerate(dict.fromkeys(ptx.values()))}
    try:
        spelled = [
            kernels and [writer.spell(_bare(kernel, str(numbers[ptx[kernel.text]]))) for kernel in kernels]
            for kernels in steps
        ]
    except NotSerializable:
        return None
    texts = [text.encode() for text in numbers]
    content = {"steps": spelled, "sizes": writer.sizes, "texts": [len(t) for t in texts]}
    head = json.dumps(content, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *texts])


def from_bytes(plan: Plan, content: bytes) -> tuple[StoredSteps, dict[str, str]]:
    """What `to_bytes` was given of an equal plan: kernels without their loops, and PTX by their texts."""
    start = _LENGTH.size + _LENGTH.unpack_from(content)[0]
    head = json.loads(content[_LENGTH.size : start])
    reader = Reader(plan.graph.values, RECORDS, read_sizes(head["sizes"]))
    steps: StoredSteps = tuple(
        [None if kernels is None else tuple([reader.read(spelled) for spelled in kernels]) for kernels in head["steps"]]
    )
    if len(steps) != len(plan.phase("run")):
        raise ValueError("a stored plan has the kernels of each step")
    ptx: dict[str, str] = {}
    for number, size in enumerate(head["texts"]):
        ptx[str(number)] = content[start : start + size].decode()
        start += size
    return steps, ptx


def _bare(kernel: GpuKernel, text: str) -> GpuKernel:
    """A kernel without its loops: what a run needs."""
    return replace(kernel, kernel=replace(kernel.kernel, body=(), early=(), stream=(), schedule=None), code=text)


__all__ = ["RECORDS", "StoredSteps", "from_bytes", "to_bytes"]
