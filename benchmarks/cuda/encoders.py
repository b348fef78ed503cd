"""A ViT and a Whisper-like encoder on an NVIDIA GPU beside torch: fp16, batch 1, pre-norm layers without a mask.

    PYTHONPATH=src python3 benchmarks/cuda/encoders.py [--shape NAME ...] [--modes reduce-overhead]
        [--max-autotune [SECONDS]] [--jax [xla] [cudnn]] [--kernels]

Every shape is measured as the estimates choose (dovetail), with layers as launches, and as passes of one persistent
kernel; the lines after it have both estimates. `models.py` says how times and errors are taken.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import dovetail
from dovetail import library, ops
from dovetail.dtypes import f16
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.value import Value

sys.path.insert(0, str(Path(__file__).parent))

import jax_encoder  # pyright: ignore[reportMissingImports]

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Layers:
    """The sizes of pre-norm layers."""

    layers: int
    hidden: int
    heads: int
    inner: int

    @property
    def width(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class VitShape:
    """The sizes of a ViT: patches of an image and a token of their class."""

    of: Layers
    image: int = 224
    patch: int = 16
    classes: int = 1000

    @property
    def tokens(self) -> int:
        return (self.image // self.patch) ** 2 + 1

    @property
    def fed(self) -> tuple[int, ...]:
        return 1, 3, self.image, self.image


@dataclass(frozen=True, slots=True)
class WhisperShape:
    """The sizes of a Whisper-like encoder: two convolutions along time, the second with stride 2."""

    of: Layers
    mels: int = 80
    frames: int = 3000

    @property
    def tokens(self) -> int:
        return self.frames // 2

    @property
    def fed(self) -> tuple[int, ...]:
        return 1, self.mels, self.frames


Shape = VitShape | WhisperShape
SHAPES: Mapping[str, Shape] = {
    "vit_tiny": VitShape(Layers(12, 192, 3, 768)),
    "vit_base": VitShape(Layers(12, 768, 12, 3072)),
    "whisper_tiny": WhisperShape(Layers(4, 384, 6, 1536)),
    "whisper_base": WhisperShape(Layers(6, 512, 8, 2048)),
    # One second of sound, as a stream brings it.
    "whisper_second": WhisperShape(Layers(6, 512, 8, 2048), frames=100),
}


def graph_of(shape: Shape) -> Graph:
    """An image or the spectrum of a sound in; logits of classes, or hidden states, out."""
    of, builder = shape.of, Builder("encoder", lines=False)

    def vector(name: str, size: int) -> Value:
        return builder.param(name, f16[size])

    def linear(name: str, x: Value, into: int, out: int) -> Value:
        return x @ builder.param(name, f16[into, out]) + vector(f"{name}.bias", out)

    def norm(name: str, x: Value) -> Value:
        return library.layer_norm.body(
            x, vector(f"{name}.gain", of.hidden), vector(f"{name}.shift", of.hidden), eps=EPS
        )

    def attention(at: str, x: Value) -> Value:
        q, k, v = (
            ops.permute(
                ops.split(linear(f"{at}.w{part}", x, of.hidden, of.hidden), axis=-1, size=of.width),
                order=(-4, -2, -3, -1),
            )
            for part in "qkv"
        )
        mixed = library.attention.body(q, k, v, scale=of.width**-0.5)
        joined = ops.merge(ops.permute(mixed, order=(-4, -2, -3, -1)), axis=-1)
        return linear(f"{at}.wo", joined, of.hidden, of.hidden)

    with builder.recording():
        x = _stem(builder, shape, builder.input("x", f16[shape.fed]))
        for index in range(of.layers):
            at = f"layers.{index}"
            x = x + attention(at, norm(f"{at}.norm1", x))
            inner = library.gelu.body(linear(f"{at}.up", norm(f"{at}.norm2", x), of.hidden, of.inner))
            x = x + linear(f"{at}.down", inner, of.inner, of.hidden)
        x = norm("norm", x)
        if isinstance(shape, VitShape):
            x = linear("head", x[:, 0], of.hidden, shape.classes)
        builder.output("y", x)
    return builder.graph()


def _stem(builder: Builder, shape: Shape, x: Value) -> Value:
    """The tokens of an input, with their places."""
    hidden = shape.of.hidden
    places = builder.param("places", f16[shape.tokens, hidden])
    if isinstance(shape, VitShape):
        w = builder.param("patches", f16[hidden, 3, shape.patch, shape.patch])
        bias = builder.param("patches.bias", f16[hidden, 1, 1])
        cells = ops.merge(ops.conv(x, w, strides=shape.patch) + bias, axis=-1)
        tokens = ops.permute(cells, order=(-3, -1, -2))
        return ops.concat(builder.param("class", f16[1, 1, hidden]), tokens, axis=-2) + places
    for name, into, stride in (("conv1", shape.mels, 1), ("conv2", hidden, 2)):
        w, bias = builder.param(name, f16[hidden, into, 3]), builder.param(f"{name}.bias", f16[hidden, 1])
        x = library.gelu.body(ops.conv(x, w, strides=stride, padding=1) + bias)
    return ops.permute(x, order=(-3, -1, -2)) + places


def weights_of(graph: Graph) -> dict[str, Any]:
    """Parameters that keep activations near one."""
    rng, found = np.random.default_rng(0), dict[str, Any]()
    for value in graph.parameters:
        name, shape = str(value.attrs["name"]), tuple(int(str(n)) for n in value.shape)
        content = rng.standard_normal(shape, dtype=np.float32)
        if "gain" in name:
            content = 1.0 + 0.1 * content
        elif "bias" in name or "shift" in name:
            content *= np.float32(0.1)
        elif name not in ("places", "class"):
            # Matrices are [in, out], and windows [out, in, ...].
            into = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
            content *= np.float32(into**-0.5)
        found[name] = content.astype(np.float16)
    return found


def feed_of(shape: Shape) -> dict[str, Any]:
    return {"x": np.random.default_rng(1).standard_normal(shape.fed, dtype=np.float32).astype(np.float16)}


def peer_of(torch: Any, shape: Shape, weights: Mapping[str, Any], dtype: Any, device: str = "cuda") -> Any:
    """The same encoder as a module of torch, with q, k and v in one product."""
    F: Any = torch.nn.functional
    Module: Any = torch.nn.Module
    of = shape.of

    class Peer(Module):
        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            joined = dict(weights)
            for index in range(of.layers):
                at = f"layers.{index}"
                for end, axis in (("", 1), (".bias", 0)):
                    parts = [weights[f"{at}.w{part}{end}"] for part in "qkv"]
                    joined[f"{at}.wqkv{end}"] = np.concatenate(parts, axis)
            for name, content in joined.items():
                # torch multiplies by [out, in].
                is_matrix = content.ndim == 2 and name != "places" and not name.endswith(".bias")
                held = torch.from_numpy(np.ascontiguousarray(content.T if is_matrix else content))
                self.register_buffer(name.replace(".", "_"), held.to(device, dtype))

        def w(self, name: str) -> Any:
            return getattr(self, name.replace(".", "_"))

        def linear(self, name: str, x: Any) -> Any:
            return F.linear(x, self.w(name), self.w(f"{name}.bias"))

        def norm(self, name: str, x: Any) -> Any:
            return F.layer_norm(x, x.shape[-1:], self.w(f"{name}.gain"), self.w(f"{name}.shift"), EPS)

        def stem(self, x: Any) -> Any:
            if isinstance(shape, VitShape):
                x = F.conv2d(x, self.w("patches"), self.w("patches.bias").flatten(), stride=shape.patch)
                x = torch.cat([self.w("class"), x.flatten(2).transpose(1, 2)], 1)
                return x + self.w("places")
            for name, stride in (("conv1", 1), ("conv2", 2)):
                x = F.gelu(F.conv1d(x, self.w(name), self.w(f"{name}.bias").flatten(), stride=stride, padding=1))
            return x.transpose(1, 2) + self.w("places")

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            for index in range(of.layers):
                at = f"layers.{index}"
                qkv = self.linear(f"{at}.wqkv", self.norm(f"{at}.norm1", x))
                q, k, v = (p.unflatten(-1, (of.heads, of.width)).transpose(1, 2) for p in qkv.chunk(3, -1))
                mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
                x = x + self.linear(f"{at}.wo", mixed)
                x = x + self.linear(f"{at}.down", F.gelu(self.linear(f"{at}.up", self.norm(f"{at}.norm2", x))))
            x = self.norm("norm", x)
            return self.linear("head", x[:, 0]) if isinstance(shape, VitShape) else x

    return Peer().eval()


def measured(torch: Any, name: str, *, beside: Any, kernels: bool) -> None:
    """One line for a shape; `beside` are the peers beside torch eager."""
    from floors import floor_of, machine_here  # pyright: ignore
    from peers import Peers, compared, profiled, raced, told_times  # pyright: ignore

    from dovetail.targets.cuda.driver.driver import driver
    from dovetail.targets.cuda.runs.run import residency_of

    shape = SHAPES[name]
    graph = graph_of(shape)
    weights, feed = weights_of(graph), feed_of(shape)
    was, first, got = driver().description, 0.0, dict[str, Any]()
    steps: dict[str, Any] = {}
    chosen = residency_of(dovetail.compile(graph, target="cuda").plan, was)
    for way, mode in (("dovetail", "auto"), ("launches", "off"), ("resident", "on")):
        driver().description = replace(was, cooperative=mode)
        start = time.perf_counter()
        program = dovetail.compile(graph, target="cuda").bind(weights)
        ours: Any = program.to_device(feed)
        got[way] = program.run(ours, outputs="device")["y"].numpy()
        first = first or time.perf_counter() - start
        steps[way] = lambda program=program, ours=ours: program.run(ours, outputs="device")
    driver().description = was
    network = peer_of(torch, shape, weights, torch.float16)
    given = torch.from_numpy(feed["x"]).cuda()
    peers = Peers(steps)

    with torch.inference_mode():
        theirs = network(given).double().cpu().numpy()
        exact = peer_of(torch, shape, weights, torch.float64)(given.double()).cpu().numpy()
        peers.add_torch(torch, network, (given,), beside.modes)
        by_jax = peers.add_jax(
            beside.attentions, lambda jax, way: jax_encoder.step_of(jax, shape, weights, feed["x"], way, EPS)
        )
        found = {name: np.asarray(step.result) for name, step in by_jax.items()}
        times: Mapping[str, Any] = raced(torch, peers.steps)
    errors = {
        way: float(np.linalg.norm(x.astype(np.float64) - exact) / np.linalg.norm(exact))
        for way, x in {**got, "torch": theirs, **found}.items()
    }
    best = min(t.seconds for n, t in times.items() if n not in got)
    line = f"{compared(times, floor_of(program, feed, machine_here()), own=[*got])} {told_times(times)}"
    ratios = " ".join(f"ratio_{way}={best / times[way].seconds:.2f}" for way in got)
    told = " ".join(f"error_{way}={error:.1e}" for way, error in errors.items())
    print(f"bench {name} target=cuda dtype=f16 {line} {ratios} {told} first_call={first:.2f}s{peers.told}", flush=True)
    if chosen is not None:
        for row in chosen.rows:
            estimate = "none" if row.seconds is None else f"{row.seconds * 1e3:.4f}"
            print(f"    {row.name}: estimate={estimate} of {chosen.passes} passes, taken={row.taken} {row.reason}")
    if kernels:
        profiled(torch, peers.steps["dovetail"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="*", choices=[*SHAPES], default=[*SHAPES])
    parser.add_argument("--modes", nargs="*", default=["reduce-overhead"], help="modes of torch.compile")
    parser.add_argument("--kernels", action="store_true")
    from peers import add_flags, torch_here, wanted  # pyright: ignore

    add_flags(parser)
    args = parser.parse_args()

    torch: Any = torch_here()
    if torch is None:
        return
    for name in args.shape:
        try:
            measured(torch, name, beside=wanted(args, args.modes), kernels=args.kernels)
        except Exception as error:  # the other shapes are measured
            print(f"bench {name} failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)


if __name__ == "__main__":
    main()
