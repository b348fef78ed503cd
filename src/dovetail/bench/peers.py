"""The peers: each takes the same case and gives a function that runs it once."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from dovetail.bench.case import Case
from dovetail.bench.result import EXPORTED, MODULE
from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.nearest import suggestion
from dovetail.runtime.compile import compile
from dovetail.targets import Target

Run: TypeAlias = Callable[[Mapping[str, Array]], Sequence[Array]]
"""One run: inputs by name, outputs in the order that the model lists them."""

PLACEMENT = "placement.json"

_DEFINITIONS = Path(__file__).resolve().parents[3] / "benchmarks" / "peers"


def definitions(name: str) -> Any:
    """Import how torch or JAX writes the built-in workloads: a file of the repository, which the wheel lacks."""
    module, path = f"benchmarks.peers.{name}", _DEFINITIONS / f"{name}.py"
    if module not in sys.modules:
        spec = importlib.util.spec_from_file_location(module, path)
        if not path.is_file() or spec is None or spec.loader is None:
            raise OptionError(
                "built-in workloads of torch and JAX outside of the repository",
                hint="run dovetail bench from a checkout that is installed with pip install -e, or pass a model file",
            )
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return sys.modules[module]


@dataclass(frozen=True, slots=True)
class ModuleRun:
    """Runs a compiled module on arrays, and can tell the graph that was read from it."""

    run: Run
    graph: Callable[[], Graph]

    def __call__(self, feeds: Mapping[str, Array]) -> Sequence[Array]:
        return self.run(feeds)


@dataclass(frozen=True, slots=True)
class Setting:
    """The number of threads, and the folder where a peer may keep its artifacts for the next process."""

    threads: int
    cache: Path

    @property
    def target(self) -> str | Target:
        """What dovetail compiles for: this machine's cores, or the mesh of devices that the folder names."""
        path = self.cache / PLACEMENT
        if not path.is_file():
            return "cpu"
        from dovetail.targets.xla.target import target  # few measure a mesh

        return target(**json.loads(path.read_text(encoding="utf-8")))

    def place(self, mesh: Mapping[str, int], rules: Mapping[str, str]) -> None:
        """Let dovetail run on a mesh of devices."""
        (self.cache / PLACEMENT).write_text(json.dumps({"mesh": mesh, "place": rules}), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to run a model: its name, the packages that it needs, and how it is prepared."""

    name: str
    packages: tuple[str, ...]
    prepare: Callable[[Case, Setting], Run]
    reads_onnx: bool = True
    """Whether it takes any ONNX file; else the network has to be written for it."""
    runs_modules: bool = False
    """Whether it takes any torch module."""
    reads_shapes: bool = True
    """Whether it takes a network that is written for it."""

    @property
    def absent(self) -> tuple[str, ...]:
        """The packages that are not installed."""
        return tuple(p for p in self.packages if importlib.util.find_spec(p.partition(".")[0]) is None)

    def takes(self, case: Case) -> bool:
        if case.network:
            return self.runs_modules
        return self.reads_onnx or (self.reads_shapes and case.shape is not None)


def _dovetail(case: Case, setting: Setting) -> Run:
    if case.network:
        return _dovetail_module(case, setting)
    fixed = case.fixed()
    program = compile(case.model, target=setting.target, threads=setting.threads, fixed=fixed)
    return lambda feeds: [*program.run({name: array for name, array in feeds.items() if name not in fixed}).values()]


def _dovetail_module(case: Case, setting: Setting) -> Run:
    """Run the network as a torch module, which dovetail reads in the place of the ONNX file."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(setting.threads)
    arguments: list[Any] = [torch.from_numpy(array) for array in case.feeds().values()]
    program = cast(Any, compile(_network(case), args=arguments, target="cpu", threads=setting.threads))
    return ModuleRun(_on_tensors(program), lambda: program.written)


def _dovetail_exported(case: Case, setting: Setting) -> Run:
    """Run the ONNX file that torch exports of a module: what reading the module costs next to reading the file."""
    path = setting.cache / "exported.onnx"
    if not path.is_file():
        definitions("torch_networks").export(case.network, case.feeds(), path)
    program = compile(path, target="cpu", threads=setting.threads)
    taken = {str(value.attrs["name"]) for value in program.graph.inputs}
    return lambda feeds: [*program.run({name: array for name, array in feeds.items() if name in taken}).values()]


def _network(case: Case) -> Any:
    if case.network:
        return definitions("torch_networks").network(case.network)
    return definitions("torch_models").module(case.shape, case.weights())


def _on_tensors(call: Callable[..., Any]) -> Run:
    """Runs a module, or what is called as one, on arrays."""
    torch: Any = importlib.import_module("torch")
    networks: Any = definitions("torch_networks")

    def run(feeds: Mapping[str, Array]) -> Sequence[Array]:
        with torch.inference_mode():
            return [t.numpy() for t in networks.tensors_of(call(*map(torch.from_numpy, feeds.values())))]

    return run


def _onnxruntime(model: Path, threads: int) -> Run:
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session: Any = runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    taken = {i.name for i in session.get_inputs()}
    return lambda feeds: session.run(None, {name: array for name, array in feeds.items() if name in taken})


def _onnxruntime_plain(case: Case, setting: Setting) -> Run:
    return _onnxruntime(case.model, setting.threads)


def _onnxruntime_optimised(case: Case, setting: Setting) -> Run:
    """onnxruntime after its own optimizer of transformers, which fuses more than it does when it loads a model."""
    path = setting.cache / "optimised.onnx"
    if not path.is_file():
        optimizer: Any = importlib.import_module("onnxruntime.transformers.optimizer")
        better = optimizer.optimize_model(str(case.model), model_type="bert", opt_level=0, use_gpu=False)
        if not any(better.get_fused_operator_statistics().values()):
            raise OptionError("its optimiser of transformers finds nothing to fuse")
        better.save_model_to_file(str(path))
    return _onnxruntime(path, setting.threads)


def _openvino(case: Case, setting: Setting) -> Run:
    openvino: Any = importlib.import_module("openvino")
    core = openvino.Core()
    hints = {
        "INFERENCE_NUM_THREADS": setting.threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "CACHE_DIR": str(setting.cache / "openvino"),
    }
    compiled = core.compile_model(str(case.model), "CPU", hints)
    request = compiled.create_infer_request()
    taken = {name for port in compiled.inputs for name in port.get_names()}

    def run(feeds: Mapping[str, Array]) -> Sequence[Array]:
        outputs = request.infer({name: array for name, array in feeds.items() if name in taken})
        return [outputs[port] for port in compiled.outputs]

    return run


def _torch(case: Case, setting: Setting, *, compiled: bool = False, frozen: bool = False, mode: str = "") -> Run:
    if compiled and not any(map(shutil.which, (os.environ.get("CXX") or "g++", "clang++"))):
        raise OptionError("torch.compile needs a C++ compiler, and there is none")
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(setting.threads)
    network = _network(case)
    if frozen:
        inductor: Any = importlib.import_module("torch._inductor.config")
        inductor.freezing = True
    if compiled:
        network = torch.compile(network, fullgraph=True, dynamic=False, mode=mode or None)
    return _on_tensors(network)


def _jax(case: Case, setting: Setting) -> Run:
    """jax has as many threads as the process has cores."""
    jax: Any = importlib.import_module("jax")
    models: Any = definitions("jax_models")
    weights = models.arranged(case.weights())
    network = jax.jit(models.function(case.shape))
    return lambda feeds: [np.asarray(network(weights, *feeds.values()))]


_COMPILED = partial(_torch, compiled=True)
OURS = Peer("dovetail", ("dovetail.frontends.onnx", "llvmlite"), _dovetail, runs_modules=True)
PEERS: tuple[Peer, ...] = (
    Peer("onnxruntime", ("onnxruntime",), _onnxruntime_plain),
    Peer("onnxruntime-optimised", ("onnxruntime", "torch"), _onnxruntime_optimised),
    Peer("openvino", ("openvino",), _openvino),
    Peer(MODULE, ("torch",), _dovetail_module, reads_onnx=False),
    Peer(EXPORTED, ("torch",), _dovetail_exported, reads_onnx=False, runs_modules=True, reads_shapes=False),
    Peer("torch", ("torch",), _torch, reads_onnx=False, runs_modules=True),
    Peer("torch.compile", ("torch",), _COMPILED, reads_onnx=False, runs_modules=True),
    Peer("torch.compile-frozen", ("torch",), partial(_COMPILED, frozen=True), reads_onnx=False),
    Peer(
        "torch.compile-max",
        ("torch",),
        partial(_COMPILED, frozen=True, mode="max-autotune"),
        reads_onnx=False,
        runs_modules=True,
    ),
    Peer("jax", ("jax",), _jax, reads_onnx=False),
)
EVERY: Mapping[str, Peer] = {peer.name: peer for peer in (OURS, *PEERS)}


def chosen(names: str | None) -> tuple[Peer, ...]:
    """Peers by their names with commas between; all without any."""
    if names is None:
        return PEERS
    selected = [name.strip() for name in names.split(",") if name.strip()]
    for name in selected:
        if name not in EVERY or name == OURS.name:
            listed = [peer.name for peer in PEERS]
            raise OptionError(
                f"there is no peer {name!r}", hint=suggestion(name, listed, f"there are {', '.join(listed)}")
            )
    return tuple(EVERY[name] for name in dict.fromkeys(selected))


__all__ = ["EVERY", "OURS", "PEERS", "PLACEMENT", "ModuleRun", "Peer", "Run", "Setting", "chosen"]
