"""Kernels for NVIDIA GPUs beside torch: bandwidth of maps, norms, softmax, reductions and transposes.

    PYTHONPATH=src python3 benchmarks/cuda/kernels.py [name ...]

Each kernel runs in a CUDA graph of ten launches; the median of the rounds counts, with ours and torch's interleaved.
Bytes are those that must be read and written once. Where they fit L2, rates above the memory's are L2's.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import dovetail
from dovetail import Graph, Value, library, ops
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, bf16, f16, f32
from dovetail.ir.leaf import input
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.driver import KernelFunction, LoadedModule, driver
from dovetail.targets.cuda.runs.run import kernels_of

LAUNCHES, ROUNDS, REPLAYS = 10, 7, 20
Ours: TypeAlias = Callable[[Value, Value, Value, Value], Value]
Theirs: TypeAlias = Callable[[Any, Any, Any, Any], Any]
"""x and y of a shape, g and b of its last axis, to a result."""


@dataclass(frozen=True, slots=True)
class Case:
    """One workload: its output, and the same in torch."""

    name: str
    output: Value
    torch: Theirs


def _case(name: str, dtype: DType, shape: tuple[int, ...], ours: Ours, torch: Theirs) -> Case:
    x, y = input("x", dtype[shape]), input("y", dtype[shape])
    g, b = input("g", dtype[shape[-1]]), input("b", dtype[shape[-1]])
    return Case(name, ours(x, y, g, b), torch)


def cases(torch: Any) -> list[Case]:
    functional = torch.nn.functional
    found: list[Case] = []
    for dtype in (f32, bf16):
        found.append(
            _case(
                f"add gelu 64M {dtype.name}",
                dtype,
                (64 * 1024, 1024),
                lambda x, y, g, b: library.gelu(x + y),
                lambda x, y, g, b: functional.gelu(x + y),
            )
        )
    found.append(_case("add 64M f32", f32, (64 * 1024, 1024), lambda x, y, g, b: x + y, lambda x, y, g, b: x + y))
    for rows in (512, 4096, 65536):
        found.append(
            _case(
                f"layer norm {rows}x768 f32",
                f32,
                (rows, 768),
                lambda x, y, g, b: library.layer_norm(x, g, b, eps=1e-5),
                lambda x, y, g, b: functional.layer_norm(x, (x.shape[-1],), g, b, 1e-5),
            )
        )
    found.append(
        _case(
            "rms norm 16384x4096 bf16",
            bf16,
            (16384, 4096),
            lambda x, y, g, b: library.rms_norm(x, g, eps=1e-5),
            lambda x, y, g, b: functional.rms_norm(x, (x.shape[-1],), g, 1e-5),
        )
    )
    for rows, columns in ((65536, 768), (16384, 4096), (4096, 32768)):
        found.append(
            _case(
                f"softmax {rows}x{columns} f32",
                f32,
                (rows, columns),
                lambda x, y, g, b: library.softmax(x),
                lambda x, y, g, b: functional.softmax(x, -1),
            )
        )
    found += [_summed(-1), _summed(-2)]
    found.append(
        _case(
            "sum of all 16384x8192 f32",
            f32,
            (16384, 8192),
            lambda x, y, g, b: ops.reduce_sum(x, axes=(-2, -1)),
            lambda x, y, g, b: x.sum((0, 1), keepdim=True),
        )
    )
    for dtype in (f32, f16):
        found.append(
            _case(
                f"transpose 8192x16384 {dtype.name}",
                dtype,
                (8192, 16384),
                lambda x, y, g, b: ops.merge(ops.permute(x, order=(-1, -2)), axis=-1, count=2),
                lambda x, y, g, b: x.t().contiguous(),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class _Launch:
    function: KernelFunction
    grid: int
    block: int
    addresses: tuple[int, ...]


def _summed(axis: int) -> Case:
    return _case(
        f"sum of axis {axis} 16384x8192 f32",
        f32,
        (16384, 8192),
        lambda x, y, g, b: ops.reduce_sum(x, axes=(axis,)),
        lambda x, y, g, b: x.sum(axis, keepdim=True),
    )


def _number(size: Size) -> int:
    assert isinstance(size, int), "every size is known here"
    return size


def prepared(case: Case, tensors: Mapping[str, Any], torch: Any) -> tuple[Callable[[], None], Any, int, str]:
    """A function that launches our kernels, the result, the bytes that must move, and the launch shapes."""
    plan = dovetail.compile(Graph.of({"out": case.output}), target="cuda").plan
    device = driver()
    held: dict[Value, Any] = {v: tensors[v.attrs["name"]] for v in plan.graph.inputs}
    kept: list[Any] = []
    launches: list[_Launch] = []
    shapes: list[str] = []
    kernels = kernels_of(plan)
    count = max([_number(made.workspace_bytes) for _, made in kernels], default=0)
    workspace = torch.empty(max(count, 1), dtype=torch.uint8, device="cuda")
    for step, made in kernels:
        for value in step.results:
            if value not in held:
                held[value] = torch.empty(_number(value.tensor.bytes), dtype=torch.uint8, device="cuda")
        module = LoadedModule(device, to_ptx(made.text, device.architecture).encode())
        function = module.function(made.kernel.name)
        kept += [module, held, workspace]
        shape = made.kernel.launch
        assert shape is not None and isinstance(shape.grid, int)
        addresses: list[int] = []
        for name in made.kernel.pointers:
            if name in made.workspace:
                addresses.append(workspace.data_ptr() + _number(made.workspace[name]))
                continue
            alias = plan.locate(made.bindings[name])
            assert isinstance(alias.offset, int)
            addresses.append(held[alias.root].data_ptr() + alias.offset)
        grid, block = shape.grid, shape.block
        shapes.append(f"{made.kernel.name} {grid}x{block}")

        launches.append(_Launch(function, grid, block, tuple(addresses)))
    (out,) = plan.graph.outputs.values()
    root = plan.locate(out).root
    moved = sum(_number(v.tensor.bytes) for v in {plan.locate(v).root for v in plan.graph.inputs}) + _number(
        out.tensor.bytes
    )

    def run() -> None:
        assert kept, "memory and modules are held as long as this is"
        stream = int(torch.cuda.current_stream().cuda_stream)
        for one in launches:
            one.function.launch(one.grid, one.block, one.addresses, stream=stream)

    result = held[root].view(tensors["x"].dtype).view([_number(n) for n in out.tensor.shape])
    return run, result, moved, ", ".join(shapes)


def graphed(torch: Any, work: Callable[[], object]) -> Any:
    """Ten launches in a CUDA graph."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            work()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def seconds(torch: Any, graph: Any) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / (REPLAYS * LAUNCHES)


def main(names: list[str]) -> int:
    import torch as untyped  # pyright: ignore[reportMissingImports]

    torch: Any = untyped
    torch.manual_seed(0)
    torch.zeros(1, device="cuda")
    print(f"{driver().name}, torch {torch.__version__}")
    print(f"{'kernel':32} {'ours µs':>9} {'GB/s':>7} {'torch µs':>9} {'GB/s':>7} {'ratio':>6} {'error':>8}  launch")
    for case in cases(torch):
        if names and not any(name in case.name for name in names):
            continue
        measure(case, torch)
    return 0


def measure(case: Case, torch: Any) -> None:
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    leaves = Graph.of({"out": case.output}).inputs
    dtype = kinds[case.output.dtype.name]
    given = {str(v.attrs["name"]): torch.randn([_number(n) for n in v.shape], device="cuda").to(dtype) for v in leaves}
    tensors = {name: given.get(name) for name in ("x", "y", "g", "b")}
    run, result, moved, shapes = prepared(case, given, torch)
    run()
    torch.cuda.synchronize()
    lifted = {name: None if t is None else t.double() for name, t in tensors.items()}
    expected = case.torch(*lifted.values()).reshape(result.shape)
    error = float((result.double() - expected).norm() / expected.norm())
    del lifted, expected
    torch.cuda.empty_cache()
    ours, theirs = graphed(torch, run), graphed(torch, lambda: case.torch(*tensors.values()))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        times[0].append(seconds(torch, ours))
        times[1].append(seconds(torch, theirs))
    a, b = (statistics.median(t) for t in times)
    print(
        f"{case.name:32} {a * 1e6:9.2f} {moved / a / 1e9:7.0f} {b * 1e6:9.2f} {moved / b / 1e9:7.0f} "
        f"{b / a:6.2f} {error:8.1e}  {shapes}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
