"""Models on an NVIDIA GPU beside torch: fp16 networks, and products of matrices and convolutions beside cuBLAS, cuDNN.

    PYTHONPATH=src python3 benchmarks/cuda/models.py [name ...] [--compile] [--modes default,reduce-overhead]
        [--max-autotune [SECONDS]] [--jax [xla] [cudnn]]

Inputs and outputs stay on the device. Each round runs every contender back to back for a tenth of a second, in turn;
the median of the rounds counts, and ratio is the time of the best peer over ours. Peers are torch eager, eager in a
CUDA graph and, with --compile, torch.compile in two modes, of which --modes picks some; --max-autotune is a third one,
with a time limit, and --jax the same network jitted by JAX. torch has images with channels innermost, and cuDNN
searches its algorithms. Products also run by cuBLASLt, with the fastest of eight algorithms. A peer that fails or takes
too long to prepare is left out and named. Errors are relative L2 against float64 on the same rounded weights.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

import dovetail
from dovetail.bench.convnets import Resnet, UnetBlock, resnet, unet_block
from dovetail.bench.transformers import BERT_BASE, MINILM, Decoder, decoder, encoder
from dovetail.bench.workloads import Shape, feeds_for
from dovetail.targets.cuda.driver import driver

sys.path.insert(0, str(Path(__file__).parent))
import cublaslt  # pyright: ignore[reportMissingImports]
from peers import (  # pyright: ignore
    MODES,
    Peers,
    Step,
    Wanted,
    add_flags,
    graphed,
    profiled,
    raced,
    timed,
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


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with f16 in place of f32."""

    def rounded(tensor: TensorProto) -> None:
        if tensor.data_type == TensorProto.FLOAT:
            array = np.clip(numpy_helper.to_array(tensor), -65504, 65504).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    graph = model.graph
    for tensor in graph.initializer:
        rounded(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                rounded(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    return model


def batched(model: onnx.ModelProto, images: int) -> onnx.ModelProto:
    """The model for more images at once; it has no shapes but those of its inputs."""
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = images
    return model


def model(torch: Any, name: str, *, beside: Wanted, kernels: bool) -> None:
    """One line for a model."""
    import importlib

    torch_models: Any = importlib.import_module("dovetail.bench.torch_models")

    shape, build = MODELS[name]
    made = half(build())
    feeds = feeds_for(made)
    weights = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(made.SerializeToString())
        start = time.perf_counter()
        program = dovetail.compile(path, target="cuda")
        got = next(iter(program.run(feeds).values()))
        first = time.perf_counter() - start
    network = torch_models.module(shape, weights).cuda().half()
    there = [torch.from_numpy(x).cuda() for x in feeds.values()]
    ours = program.to_device(feeds)
    peers = Peers({"dovetail": lambda: program.run(ours, outputs="device")})

    with torch.inference_mode():
        theirs = network(*there).float().cpu().numpy()
        peers.add_torch(torch, network, there, beside.modes)
        by_jax = peers.add_jax(beside.attentions, lambda jax, attention: _jitted(jax, shape, weights, feeds, attention))
        times = raced(torch, peers.steps)
        exact = _exact(torch, shape, weights, feeds)

    def error(found: Any) -> float:
        return float(np.linalg.norm(np.asarray(found).astype(np.float64) - exact) / np.linalg.norm(exact))

    others = "".join(f" {n}_error={error(step.result):.1e}" for n, step in by_jax.items())
    best = min([t for n, t in times.items() if n != "dovetail"], default=float("nan"))
    line = " ".join(f"{n}={t * 1e3:.4f}" for n, t in times.items())
    print(
        f"bench {name} target=cuda dtype=f16 {line} ratio={best / times['dovetail']:.2f} "
        f"error={error(got):.1e} torch_error={error(theirs):.1e}{others} first_call={first:.2f}s "
        f"steps={len(program.plan.phase('run'))}{peers.told}",
        flush=True,
    )
    if kernels:
        profiled(torch, peers.steps["dovetail"])


def _jitted(
    jax: Any, shape: Shape, weights: Mapping[str, Any], feeds: Mapping[str, Any], attention: str
) -> Callable[[], Any]:
    """The same network by JAX, on its device."""
    import importlib

    jax_models: Any = importlib.import_module("dovetail.bench.jax_models")

    held, given = jax_models.arranged(weights), [jax.numpy.asarray(x) for x in feeds.values()]
    run = jax.jit(jax_models.function(shape, attention))
    return lambda: run(held, *given)


def _exact(torch: Any, shape: Shape, weights: Mapping[str, Any], feeds: Mapping[str, Any]) -> Any:
    """The first output in float64, by torch on the device."""
    import importlib

    torch_models: Any = importlib.import_module("dovetail.bench.torch_models")

    wide = {n: w.astype(np.float64) if w.dtype == np.float16 else w for n, w in weights.items()}
    given = [torch.from_numpy(x.astype(np.float64) if x.dtype == np.float16 else x).cuda() for x in feeds.values()]
    return torch_models.module(shape, wide).cuda().double()(*given).cpu().numpy()


def product(torch: Any, rows: int, depth: int, columns: int, kind: str) -> None:
    """One line for a product of matrices, beside cuBLAS."""
    dtype = {"f16": dovetail.f16, "bf16": dovetail.bf16, "f32": dovetail.f32}[kind]
    x, w = dovetail.input("x", dtype[rows, depth]), dovetail.input("w", dtype[depth, columns])
    program = dovetail.compile(dovetail.Graph.of({"y": dovetail.ops.matmul(x, w)}), target="cuda")
    own = {
        n: np.random.default_rng(i).normal(size=s).astype(dtype.numpy)
        for i, (n, s) in enumerate({"x": (rows, depth), "w": (depth, columns)}.items())
    }
    ours = program.to_device(own)
    there = [torch.from_dlpack(a) for a in ours.values()]
    torch.backends.cuda.matmul.allow_tf32 = False
    peers = Peers({"dovetail": lambda: program.run(ours, outputs="device")})
    peers.add("cublas", lambda: graphed(torch, lambda: torch.mm(*there)))
    written: list[Any] = []

    def lt() -> Step:
        x, w = there
        step, y = cublaslt.product(torch, x, w, graphed, timed)  # pyright: ignore
        written.append(y)
        return step  # pyright: ignore

    peers.add("cublaslt", lt)
    times = raced(torch, peers.steps)
    exact = there[0].double() @ there[1].double()
    found = torch.from_dlpack(program.run(ours, outputs="device")["y"])
    error = float((found.double() - exact).norm() / exact.norm())
    theirs = float((torch.mm(*there).double() - exact).norm() / exact.norm())
    rate = 2 * rows * depth * columns / times["dovetail"] / 1e12
    best = min([t for n, t in times.items() if n != "dovetail"], default=float("nan"))
    print(
        f"bench product_{rows}x{depth}x{columns}_{kind} target=cuda "
        + " ".join(f"{n}={t * 1e3:.4f}" for n, t in times.items())
        + f" ratio={best / times['dovetail']:.2f} tflops={rate:.0f} error={error:.1e} cublas_error={theirs:.1e}"
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
    x = dovetail.input("x", dovetail.f16[images, size, size, channels])
    image = dovetail.ops.permute(x, order=(-4, -1, -3, -2))
    made = dovetail.ops.conv(image, dovetail.constant(w), strides=stride, padding=around)
    y = dovetail.ops.permute(dovetail.ops.relu(made + dovetail.constant(b)), order=(-4, -2, -1, -3))
    program = dovetail.compile(dovetail.Graph.of({"y": dovetail.ops.mul(y, y)}), target="cuda")
    ours = program.to_device({"x": rng.normal(size=(images, size, size, channels)).astype(np.float16)})
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
    rate = 2 * images * out * out * filters * channels * window**2 / times["dovetail"] / 1e12
    print(
        f"bench conv_{images}x{channels}x{size}_{filters}x{window}_s{stride} target=cuda dtype=f16 "
        f"dovetail={times['dovetail'] * 1e3:.4f} cudnn={times['cudnn'] * 1e3:.4f} "
        f"ratio={times['cudnn'] / times['dovetail']:.2f} tflops={rate:.0f} error={error:.1e} cudnn_error={other:.1e}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", nargs="*")
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
        driver().description = replace(driver().description, dependent_launches=True)
    rows: dict[str, Step] = {}
    if not args.name or "products" in args.name:
        for sizes in PRODUCTS:
            rows["product_" + "x".join(map(str, sizes))] = lambda sizes=sizes: product(torch, *sizes, "bf16")
        rows["product_f32"] = lambda: product(torch, 4096, 4096, 4096, "f32")
    torch.backends.cudnn.benchmark = True
    if not args.name or "convolutions" in args.name:
        for sizes in CONVOLUTIONS:
            rows["convolution_" + "x".join(map(str, sizes))] = lambda sizes=sizes: convolution(torch, *sizes)
    for name in MODELS:
        if not args.name or name in args.name:
            rows[name] = lambda name=name: model(torch, name, beside=beside, kernels=args.kernels)
    for name, row in rows.items():
        try:
            row()
        except Exception as error:  # the other rows are measured
            print(f"bench {name} failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
