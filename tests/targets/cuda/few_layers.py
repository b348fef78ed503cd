"""A few layers of products as passes of one kernel, on the simulated device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import dovetail
from dovetail import Graph, library, ops
from dovetail.ir.dtype import bf16
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.tile import H200
from dovetail.runtime.program import Program
from dovetail.targets.cuda.gpu_kernel import GpuKernel
from dovetail.targets.cuda.run import steps_of
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.simulated import SimulatedDriver, target_of

DEVICE = replace(H200, multiprocessors=20, cluster=8, dependent_launches=True, cooperative="on", bulk_copies=True)
COPYING = replace(DEVICE, copying_warp=True, bytes_per_cycle=18.75)


def layers(count: int, width: int = 256, inner: int = 512) -> Graph:
    x = input("x", bf16[1, width])
    for layer in range(count):
        normed = library.rms_norm(x, param(f"gain{layer}", bf16[width]), eps=1e-6)
        hidden = library.swiglu(normed, param(f"g{layer}", bf16[width, inner]), param(f"u{layer}", bf16[width, inner]))
        x = x + hidden @ param(f"w{layer}", bf16[inner, width])
        x = x + ops.relu(x @ param(f"a{layer}", bf16[width, inner])) @ param(f"b{layer}", bf16[inner, width])
    return Graph.of({"y": x})


def program_of(graph: Graph, device: GpuDevice) -> Program:
    simulated = SimulatedDriver()
    simulated.description = device
    return dovetail.compile(graph, target=target_of(simulated))


def kernels_of(graph: Graph, device: GpuDevice) -> list[GpuKernel]:
    every = steps_of(program_of(graph, device).plan, device=device)
    return [made for _, kernels in every for made in kernels or ()]


def resident_of(graph: Graph, device: GpuDevice) -> GpuKernel:
    (made,) = [made for made in kernels_of(graph, device) if made.kernel.counter]
    return made


def ran(graph: Graph, device: GpuDevice) -> tuple[Array, Array]:
    """What a run finds, and the reference."""
    random, drawn = np.random.default_rng(3), dict[str, Any]()
    for v in (*graph.inputs, *graph.parameters):
        shape = tuple(int(str(n)) for n in v.shape)
        drawn[str(v.attrs["name"])] = (random.normal(size=shape) * shape[0] ** -0.5).astype(v.dtype.numpy)
    x = {"x": drawn.pop("x")}
    found = program_of(graph, device).bind(drawn).run(x)["y"]
    return found, evaluate(graph, x, params=drawn, lift=True)["y"]


__all__ = ["COPYING", "DEVICE", "kernels_of", "layers", "program_of", "ran", "resident_of"]
