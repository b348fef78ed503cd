"""The kernels of the benchmark models, of the exporters' files and of the kernel tests, as normalised LLVM text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import onnx

from dovetail.bench.convnets import Resnet, UnetBlock, resnet, unet_block
from dovetail.bench.net import Net
from dovetail.bench.transformers import BERT_BASE, MINILM, Decoder, decoder, encoder
from dovetail.frontends.onnx import import_model
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.rewrite import rebuild
from dovetail.ir.text import parse_graph
from dovetail.ir.value import Value
from dovetail.kernels.device import Caches, CpuDevice
from dovetail.plan.plan import Plan, make_plan
from dovetail.runtime.compile import compilation
from dovetail.runtime.load import load
from dovetail.runtime.request import Request, make_request
from dovetail.runtime.vocabulary import vocabulary
from dovetail.targets.cpu.backend import backend_for
from dovetail.targets.cpu.claims import CLAIMS
from dovetail.targets.cpu.target import TARGET
from dovetail.targets.runtime.building.build import builder_of, kernels_of
from dovetail.targets.runtime.control.plan import Control
from tests.codegen.normal import normalised, unmarked

HERE = Path(__file__).parent
EXPORTERS = HERE.parent / "data" / "exporters"
CORPUS = HERE / "corpus.txt"

MACHINES: Mapping[str, CpuDevice] = {
    "avx512": CpuDevice(
        512,
        32,
        ("embedded_broadcast", "masked_memory", "scale_by_power_of_two", "vnni"),
        Caches(l1=48 << 10, l2=2 << 20),
    ),
    "avx2": CpuDevice(256, 16, ("masked_memory",)),
    "neon": CpuDevice(128, 32, ("fma_by_lane",)),
}
"""What code is generated for."""

_SHORT = replace(MINILM, layers=2)
_DECODER = Decoder(layers=2)
WORKLOADS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "minilm_1x16": lambda: encoder(_SHORT, 1, 16),
    "minilm_1x128": lambda: encoder(_SHORT, 1, 128),
    "minilm_8x128": lambda: encoder(_SHORT, 8, 128),
    "bert_base_1x128": lambda: encoder(replace(BERT_BASE, layers=2), 1, 128),
    "prefill_1x128": lambda: decoder(_DECODER, 128),
    "one_token_256": lambda: decoder(_DECODER, 1, 256),
    "resnet50": lambda: resnet(Resnet(blocks=(2, 2, 2, 2))),
    "unet_block": lambda: unet_block(UnetBlock()),
}
"""The benchmark models with as few layers as have every kernel."""


@dataclass(frozen=True, slots=True)
class Generated:
    """One module: its normalised text, and where it is met first."""

    stem: str
    source: str
    text: str

    @property
    def hash(self) -> str:
        return hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest()


def weightless(build: Callable[[], onnx.ModelProto]) -> Graph:
    """The graph of a model whose large parameters have no arrays: drawing and copying them takes seconds."""
    weights: set[str] = set()

    def weight(net: Net, name: str, *shape: int) -> str:
        weights.add(name)
        return net.input(name, onnx.TensorProto.FLOAT, shape)

    def bound(value: Value, operands: tuple[Value, ...]) -> Value | None:
        is_weight = value.op is leaf.INPUT and value.attrs["name"] in weights
        return leaf.param(str(value.attrs["name"]), value.tensor) if is_weight else None

    with patch.object(Net, "weight", weight):
        graph = import_model(build())
    inputs = tuple(v for v in graph.inputs if v.attrs["name"] not in weights)
    return replace(rebuild(graph, bound), inputs=inputs)


def request() -> Request:
    """What `compile(target="cpu")` does, with the built-in machine model instead of this host's calibration."""
    return make_request(target=replace(TARGET, machine=None))


def workloads() -> Iterator[tuple[str, Plan]]:
    asked = request()
    for name, build in WORKLOADS.items():
        yield f"bench:{name}", compilation(weightless(build), asked).plan


def exporters(files: Iterable[Path] = ()) -> Iterator[tuple[str, Plan]]:
    asked = request()
    for path in files or sorted(EXPORTERS.glob("*.onnx")):
        yield f"exporters:{path.stem}", compilation(load(path), asked).plan


def corpus() -> Iterator[tuple[str, Plan]]:
    words = vocabulary()
    for entry in CORPUS.read_text(encoding="utf-8").split("\n# ")[1:]:
        header, _, text = entry.partition("\n")
        source, *options = header.split()
        yield source, planned(parse_graph(text, words), strict="strict" in options)


def planned(graph: Graph, *, strict: bool) -> Plan:
    return make_plan(graph, target=CLAIMS, options={"strict": strict})


def modules(plan: Plan, device: CpuDevice) -> Iterator[tuple[str, str]]:
    """The name and the text of each module of a plan: kernels, variants, shared functions, bodies of control flow."""
    backend = backend_for(device)
    builder = builder_of(plan, backend)
    jobs = [builder.job(step) for step in plan.phase("run")]
    inside = [entry.job for job in jobs if isinstance(job, Control) for entry in job.entries]
    for kernel in {id(job.kernel): job for job in (*kernels_of(jobs), *inside)}.values():
        for module in backend.code.modules(kernel):
            yield module.name, module.text


class Collection:
    """Distinct modules by machine, in the order in which sources have them."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Generated]] = {machine: {} for machine in MACHINES}
        self._texts: dict[str, Generated] = {}
        """By the text before it is normalised."""

    def add(self, source: str, plan: Plan) -> int:
        """Take up the modules of a plan; how many are new."""
        before = self.count
        for machine, device in MACHINES.items():
            for name, text in modules(plan, device):
                if text not in self._texts:
                    self._texts[text] = Generated(unmarked(name), source, normalised(text))
                made = self._texts[text]
                self.found[machine].setdefault(made.hash, replace(made, source=source))
        return self.count - before

    @property
    def count(self) -> int:
        return sum(map(len, self.found.values()))
