"""The driver on a fake device: programs run end to end without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CFUNCTYPE, byref, c_int

import numpy as np

import dovetail
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.ir import Kernel
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.code.ptx_compiler import verified
from dovetail.targets.cuda.driver.api import SIGNATURES, KernelNodeParams
from dovetail.targets.cuda.driver.driver import Driver
from dovetail.targets.cuda.runs.launch_code import launch_code
from dovetail.targets.cuda.runs.run import CudaGraph, steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.target import Target
from tests.targets.cuda.fake_driver import FakeLibrary, digest


class SimulatedDriver(Driver):
    """The driver with a fake library. PTX is a name by which the library finds the loops of a kernel.

    The simulator runs loops, whose names it finds wherever they were set; LLVM's verifier judges the text of them.
    """

    def __init__(self, library: FakeLibrary | None = None, *, fresh: bool = False) -> None:
        self.library = library or FakeLibrary()
        self.compiled = 0
        super().__init__(self.library, fresh=fresh)

    @property
    def log(self) -> list[str]:
        """The calls of the driver, and the kernels that ran."""
        return self.library.log

    @property
    def memory(self) -> dict[int, Array]:
        return self.library.memory

    def ptx(self, kernel: GpuKernel) -> str:
        self.compiled += 1
        name = digest(kernel.text)
        if name not in self.library.kernels:
            verified(kernel.text)
        self.library.kernels[name] = kernel.kernel
        return f"// {name}\n.target {self.architecture}\n.visible .entry {kernel.kernel.name}"


class CompiledDriver(SimulatedDriver):
    """The same with machine code for what a run of a graph calls, so that compiled code can call it too."""

    def __init__(self) -> None:
        super().__init__()
        fake = {name: self.library[name] for name in self.library}

        def set_params(graph: int, node: int, params: int) -> int:
            return fake["cuGraphExecKernelNodeSetParams_v2"](graph, node, byref(KernelNodeParams.from_address(params)))

        def launch(graph: int, stream: int | None) -> int:
            return fake["cuGraphLaunch"](graph, stream or 0)

        made = {"cuCtxSetCurrent": fake["cuCtxSetCurrent"], "cuGraphLaunch": launch}
        made["cuGraphExecKernelNodeSetParams_v2"] = set_params
        self.functions = fake | {name: CFUNCTYPE(c_int, *SIGNATURES[name])(f) for name, f in made.items()}
        launch_code.start()
        launch_code.wait()


def target_of(device: Driver) -> Target:
    """The target on a device, for `dovetail.compile`."""
    from dovetail.targets.cuda.target import target_for

    return target_for(lambda: device)


def kernels_on(graph: Graph, device: GpuDevice) -> list[Kernel]:
    """The kernels of a graph on a device, in the order of their launches."""
    driver = SimulatedDriver()
    driver.description = device
    plan = dovetail.compile(graph, target=target_of(driver)).plan
    return [made.kernel for _, kernels in steps_of(plan, device=device) for made in kernels or ()]


def drawn_for(graph: Graph) -> dict[str, Array]:
    """Random arrays for the inputs and parameters of a graph; those of matrices keep the size of what they multiply."""
    random, found = np.random.default_rng(5), dict[str, Array]()
    for v in (*graph.inputs, *graph.parameters):
        shape = tuple(int(str(n)) for n in v.shape)
        scale = shape[0] ** -0.5 if len(shape) == 2 and v in graph.parameters else 1.0
        found[str(v.attrs["name"])] = (random.normal(size=shape) * scale).astype(v.dtype.numpy)
    return found


def run_simulated(graph: Graph, device: GpuDevice, drawn: Mapping[str, Array]) -> Array:
    """The output `y` of a graph on a simulated device."""
    simulated = SimulatedDriver()
    simulated.description = device
    feeds = {name: drawn[name] for name in map(str, (v.attrs["name"] for v in graph.inputs))}
    params = {name: x for name, x in drawn.items() if name not in feeds}
    return CudaGraph(make_plan(graph, target=CLAIMS), lambda: simulated).bind(params).run(feeds)["y"]


__all__ = ["CompiledDriver", "FakeLibrary", "SimulatedDriver", "drawn_for", "kernels_on", "run_simulated", "target_of"]
