"""Models on an NVIDIA GPU beside torch, and products of matrices and convolutions beside cuBLAS and cuDNN.

    PYTHONPATH=src python3 benchmarks/cuda/models.py [name ...] [--dtype f16|bf16|f32] [--from-numpy] [--compile]
        [--modes default,reduce-overhead] [--max-autotune [SECONDS]] [--jax [xla] [cudnn]]

Inputs and outputs stay on the device. Each round runs every contender back to back for a tenth of a second, in turn;
the median of the rounds counts, and ratio is the time of the best peer over ours. Times are between two events of the
device around all runs of a round; the clock is told too where it differs by more than 5 % (`dovetail_wall`), and counts
for JAX, which has streams of its own (`by_wall`). `floor` is the time of the roofline in milliseconds, by the figures
of the device (`dovetail doctor --calibrate`) or else of an H200: all arithmetic at the peak, or inputs and weights read
once and outputs written. `limit` and `roofline` are the share of it that we reach.

Peers are torch eager, eager in a CUDA graph and, with --compile, torch.compile in two modes, of which --modes picks
some; --max-autotune is a third one, with a time limit, and --jax the same network jitted by JAX. onnxruntime runs the
same file on CUDA, also in a CUDA graph, and by TensorRT, where it is installed with them. torch has images with
channels innermost, and cuDNN searches its algorithms. Products also run by cuBLASLt, with the fastest of eight
algorithms. A peer that fails or takes too long to prepare is left out and named. Errors are relative L2 against float64
on the same rounded weights.

Our f32 is exact f32: with --dtype f32 neither torch nor JAX nor onnxruntime may multiply in tf32, and TensorRT, which
does, is left out. --from-numpy measures models from arrays of the host to arrays of the host, by the clock: ours are
pageable NumPy arrays, those of torch are in pinned memory and copied asynchronously.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import dovetail
from dovetail.bench.convnets import Resnet, UnetBlock, resnet, unet_block
from dovetail.bench.peers import definitions
from dovetail.bench.transformers import BERT_BASE, MINILM, Decoder, decoder, encoder
from dovetail.bench.workloads import Shape, feeds_for
from dovetail.targets.cuda.driver.driver import driver

sys.path.insert(0, str(Path(__file__).parent))
import cublaslt  # pyright: ignore[reportMissingImports]
import onnx_peers  # pyright: ignore[reportMissingImports]
from converted import DTYPES, converted, is_float, narrowed, weights_of, widened  # pyright: ignore
from floors import floor_of, machine_here  # pyright: ignore
from peers import (  # pyright: ignore
    MODES,
    Peers,
    Step,
    Wanted,
    add_flags,
    compared,
    graphed,
    profiled,
    raced,
    timed,
    told_times,
    torch_here,
    wanted,
)

MODELS: Mapping[str, tuple[Shape, Callable[[], onnx.ModelProto]]] = {
    "minilm_1x16": (MINILM, lambda: encoder(MINILM, 1, 16)),
    "minilm_1x128": (MINILM, lambda: encoder(MINILM, 1, 128)),
    "minilm_32x128": (MINILM, lambda: encoder(MINILM, 32, 128)),
    "bert_1x128": (BERT_BASE, lambda: encoder(BERT_BASE, 1, 128)),
    "bert_32x128": (BERT_BASE, lambda: encoder(BERT_BASE, 32, 128)),
    "prefill_1x512": (Decoder(), lambda: decoder(Decoder(), 512)),
    "one_token_512": (Decoder(), lambda: decoder(Decoder(), 1, 512)),
    "resnet50_1": (Resnet(), lambda: resnet(Resnet())),
    "resnet50_32": (Resnet(), lambda: batched(resnet(Resnet()), 32)),
    "unet_block": (UnetBlock(), lambda: unet_block(UnetBlock())),
}
PRODUCTS = (
    (4096, 4096, 4096),
    (4096, 768, 768),
    (4096, 768, 3072),
    (4096, 3072, 768),
    (128, 768, 768),
    (128, 768, 3072),
)
"""Rows, depth, columns."""
CONVOLUTIONS = (
    (1, 3, 64, 224, 7, 2),
    (1, 64, 64, 56, 3, 1),
    (1, 256, 256, 14, 3, 1),
    (1, 512, 512, 7, 3, 1),
    (32, 64, 64, 56, 3, 1),
    (32, 256, 64, 56, 1, 1),
    (32, 128, 128, 56, 3, 2),
    (32, 256, 256, 14, 3, 1),
    (32, 512, 512, 7, 3, 1),
    (1, 128, 128, 32, 3, 1),
)
"""Layers of ResNet-50 and of the U-Net block: images, channels, filters, size, window, stride."""


def batched(model: onnx.ModelProto, images: int) -> onnx.ModelProto:
    """The model for more images at once; it has no shapes but those of its inputs."""
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = images
    return model


def model(
    torch: Any, name: str, *, beside: Wanted, kernels: bool, dtype: str = "f16", from_numpy: bool = False
) -> None:
    """One line for a model, and one from arrays of the host where it is asked for."""

    torch_models: Any = definitions("torch_models")

    shape, build = MODELS[name]
    made = build()
    feeds = narrowed(feeds_for(made), dtype)
    content = converted(made, dtype).SerializeToString()
    weights = weights_of(made)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(content)
        start = time.perf_counter()
        program = dovetail.compile(path, target="cuda")
        results = program.run(feeds)
        first = time.perf_counter() - start
    got = next(iter(results.values()))
    network = torch_models.module(shape, widened(weights)).cuda().to(_floats(torch)[dtype])
    there = {n: _tensor(torch, x, dtype).cuda() for n, x in feeds.items()}
    given = [*there.values()]
    ours = program.to_device(feeds)
    peers = Peers({"dovetail": lambda: program.run(ours, outputs="device")})

    with torch.inference_mode():
        theirs = network(*given).float().cpu().numpy()
        peers.add_torch(torch, network, given, beside.modes)
        by_jax = peers.add_jax(
            beside.attentions, lambda jax, attention: _jitted(jax, shape, weights, feeds, attention, dtype)
        )
        sizes = {n: x.shape for n, x in results.items()}
        for peer in onnx_peers.available():
            peers.add(peer, lambda peer=peer: onnx_peers.step_of(torch, peer, content, dtype, there, sizes))
        times = raced(torch, peers.steps)
        exact = _exact(torch, shape, weights, feeds)

    def error(found: Any) -> float:
        return float(np.linalg.norm(np.asarray(found).astype(np.float64) - exact) / np.linalg.norm(exact))

    found = {n: step.result for n, step in by_jax.items()}
    found |= {n: s.result.float().cpu().numpy() for n, s in peers.steps.items() if isinstance(s, onnx_peers.OnnxStep)}
    others = "".join(f" {n}_error={error(result):.1e}" for n, result in found.items())
    print(
        f"bench {name} target=cuda dtype={dtype} {compared(times, floor_of(program, feeds, machine_here()))} "
        f"{told_times(times)} error={error(got):.1e} torch_error={error(theirs):.1e}{others} first_call={first:.2f}s "
        f"steps={len(program.plan.phase('run'))}{peers.told}",
        flush=True,
    )
    if kernels:
        profiled(torch, peers.steps["dovetail"])
    if from_numpy:
        _from_numpy(torch, name, program, network, feeds, dtype)


def _from_numpy(torch: Any, name: str, program: Any, network: Any, feeds: Mapping[str, Any], dtype: str) -> None:
    """One line for a model from arrays of the host to arrays of the host."""
    pinned = [_tensor(torch, x, dtype).pin_memory() for x in feeds.values()]
    peers = Peers({"dovetail": lambda: program.run(feeds)})
    with torch.inference_mode():
        peers.add_from_numpy(torch, network, pinned)
        times = raced(torch, peers.steps, by_events=False)
    print(
        f"bench {name}_from_numpy target=cuda dtype={dtype} {compared(times)} {told_times(times)}{peers.told}",
        flush=True,
    )


def _floats(torch: Any) -> Mapping[str, Any]:
    return {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def _tensor(torch: Any, array: Any, dtype: str) -> Any:
    """An array as a tensor on the host; torch does not know the bf16 of ml_dtypes."""
    if not is_float(array):
        return torch.from_numpy(array)
    return torch.from_numpy(array.astype(np.float32)).to(_floats(torch)[dtype])


def _jitted(
    jax: Any, shape: Shape, weights: Mapping[str, Any], feeds: Mapping[str, Any], attention: str, dtype: str
) -> Callable[[], Any]:
    """The same network by JAX, on its device."""

    jax_models: Any = definitions("jax_models")

    if dtype == "f32":
        jax.config.update("jax_default_matmul_precision", "highest")  # else it multiplies in tf32
    held = {n: w.astype(DTYPES[dtype]) for n, w in jax_models.arranged(widened(weights)).items()}
    given = [jax.numpy.asarray(x) for x in feeds.values()]
    run = jax.jit(jax_models.function(shape, attention))
    return lambda: run(held, *given)


def _exact(torch: Any, shape: Shape, weights: Mapping[str, Any], feeds: Mapping[str, Any]) -> Any:
    """The first output in float64, by torch on the device."""

    torch_models: Any = definitions("torch_models")

    given = [torch.from_numpy(x).cuda() for x in widened(feeds, np.float64).values()]
    network = torch_models.module(shape, widened(weights, np.float64)).cuda().double()
    return network(*given).cpu().numpy()


def product(torch: Any, rows: int, depth: int, columns: int, kind: str) -> None:
    """One line for a product of matrices, beside cuBLAS."""
    dtype = {"f16": dovetail.dtypes.f16, "bf16": dovetail.dtypes.bf16, "f32": dovetail.dtypes.f32}[kind]
    x, w = dovetail.input("x", dtype[rows, depth]), dovetail.input("w", dtype[depth, columns])
    # Our own kernels, whatever a run on this card has decided.
    program = dovetail.compile(dovetail.Graph.of({"y": dovetail.ops.matmul(x, w)}), target="cuda", libraries="off")
    own = {
        n: np.random.default_rng(i).normal(size=s).astype(dtype.numpy)
        for i, (n, s) in enumerate({"x": (rows, depth), "w": (depth, columns)}.items())
    }
    ours = program.to_device(own)
    there = [torch.from_dlpack(a) for a in ours.values()]
    peers = Peers({"dovetail": lambda: program.run(ours, outputs="device")})
    peers.add("cublas", lambda: graphed(torch, lambda: torch.mm(*there)))
    written: list[Any] = []

    def lt() -> Step:
        x, w = there
        step, y = cublaslt.product(torch, x, w, graphed, lambda *given: timed(*given).seconds)  # pyright: ignore
        written.append(y)
        return step  # pyright: ignore

    peers.add("cublaslt", lt)
    times = raced(torch, peers.steps)
    exact = there[0].double() @ there[1].double()
    found = torch.from_dlpack(program.run(ours, outputs="device")["y"])
    error = float((found.double() - exact).norm() / exact.norm())
    theirs = float((torch.mm(*there).double() - exact).norm() / exact.norm())
    rate = 2 * rows * depth * columns / times["dovetail"].seconds / 1e12
    print(
        f"bench product_{rows}x{depth}x{columns}_{kind} target=cuda dtype={kind} "
        + f"{compared(times, floor_of(program, own, machine_here()))} {told_times(times)}"
        + f" tflops={rate:.0f} error={error:.1e} cublas_error={theirs:.1e}"
        + "".join(f" cublaslt_error={float((y.double() - exact).norm() / exact.norm()):.1e}" for y in written)
        + peers.told,
        flush=True,
    )


def convolution(torch: Any, images: int, channels: int, filters: int, size: int, window: int, stride: int) -> None:
    """One line for a convolution with bias and ReLU between two others, beside cuDNN."""
    around, rng = window // 2, np.random.default_rng(0)
    w, b = (
        (rng.normal(size=s) / (channels * window**2) ** 0.5).astype(np.float16)
        for s in ((filters, channels, window, window), (filters, 1, 1))
    )
    # With channels innermost on both sides, as between two layers.
    x = dovetail.input("x", dovetail.dtypes.f16[images, size, size, channels])
    image = dovetail.ops.permute(x, order=(-4, -1, -3, -2))
    made = dovetail.ops.conv(image, dovetail.graphs.constant(w), strides=stride, padding=around)
    y = dovetail.ops.permute(dovetail.ops.relu(made + dovetail.graphs.constant(b)), order=(-4, -2, -1, -3))
    program = dovetail.compile(dovetail.Graph.of({"y": dovetail.ops.mul(y, y)}), target="cuda")
    feeds = {"x": rng.normal(size=(images, size, size, channels)).astype(np.float16)}
    ours = program.to_device(feeds)
    there = torch.from_dlpack(ours["x"]).permute(0, 3, 1, 2)
    weight = torch.from_numpy(w).cuda().contiguous(memory_format=torch.channels_last)
    bias = torch.from_numpy(b.reshape(-1)).cuda()

    def theirs() -> Any:
        return torch.relu(torch.nn.functional.conv2d(there, weight, bias, stride, around)).square()

    times = raced(torch, {"dovetail": lambda: program.run(ours, outputs="device"), "cudnn": graphed(torch, theirs)})
    exact = torch.nn.functional.conv2d(there.double(), weight.double(), bias.double(), stride, around).relu().square()
    exact = exact.permute(0, 2, 3, 1)
    found = torch.from_dlpack(program.run(ours, outputs="device")["y"])
    error = float((found.double() - exact).norm() / exact.norm())
    other = float((theirs().permute(0, 2, 3, 1).double() - exact).norm() / exact.norm())
    out = (size + 2 * around - window) // stride + 1
    rate = 2 * images * out * out * filters * channels * window**2 / times["dovetail"].seconds / 1e12
    print(
        f"bench conv_{images}x{channels}x{size}_{filters}x{window}_s{stride} target=cuda dtype=f16 "
        f"{compared(times, floor_of(program, feeds, machine_here()))} {told_times(times)} "
        f"tflops={rate:.0f} error={error:.1e} cudnn_error={other:.1e}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*")
    parser.add_argument("--dtype", choices=[*DTYPES], default="f16", help="of models")
    parser.add_argument("--from-numpy", action="store_true", help="models from and to arrays of the host as well")
    parser.add_argument("--compile", action="store_true", help=f"beside torch.compile: {', '.join(MODES)}")
    parser.add_argument("--modes", default="", help=f"modes of torch.compile, with commas between: {','.join(MODES)}")
    add_flags(parser)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--dependent", action="store_true", help="kernels start while the one before still runs")
    args = parser.parse_args()
    modes = tuple(args.modes.split(",")) if args.modes else MODES if args.compile else ()
    unknown = {*modes} - {*MODES}
    if unknown:
        parser.error(f"--modes {','.join(sorted(unknown))}: there are {', '.join(MODES)}")
    beside = wanted(args, modes)
    torch = torch_here()
    if torch is None:
        return
    if args.dependent:
        driver().description = replace(driver().description, dependent_intensity=inf)
    rows: dict[str, Step] = {}
    if not args.name or "products" in args.name:
        for sizes in PRODUCTS:
            rows["product_" + "x".join(map(str, sizes))] = lambda sizes=sizes: product(torch, *sizes, "bf16")
        rows["product_f32"] = lambda: product(torch, 4096, 4096, 4096, "f32")
    torch.backends.cudnn.benchmark = True
    # Our f32 is exact.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if not args.name or "convolutions" in args.name:
        for sizes in CONVOLUTIONS:
            rows["convolution_" + "x".join(map(str, sizes))] = lambda sizes=sizes: convolution(torch, *sizes)
    for name in MODELS:
        if not args.name or name in args.name:
            rows[name] = lambda name=name: model(
                torch, name, beside=beside, kernels=args.kernels, dtype=args.dtype, from_numpy=args.from_numpy
            )
    for name, row in rows.items():
        try:
            row()
        except Exception as error:  # the other rows are measured
            print(f"bench {name} failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
