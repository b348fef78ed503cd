"""One token of a decoder, or a prompt, on an NVIDIA GPU beside torch: bf16 weights, a KV cache updated in place.

    PYTHONPATH=src python3 benchmarks/cuda/decode.py [--shape NAME ...] [--cached N ...] [--tokens N]
        [--compile [MODE ...]] [--max-autotune [SECONDS]] [--jax [xla] [cudnn]] [--kernels]
        [--resident auto|on|off] [--both]

Our caches are donated inputs whose length is a symbol; those of torch are buffers of a fixed size, which it updates in
place. Peers are torch eager, eager in a CUDA graph and, by flags, torch.compile and JAX (`peers.py`). `models.py` says
how times and errors are taken. `floor` is that of reading weights and the filled part of the cache once, or of the
arithmetic, in milliseconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

import dovetail
from dovetail import library, models, ops
from dovetail.dtypes import bf16
from dovetail.ir.dtype import i64
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.value import Value
from dovetail.kernels.device import Cooperative
from dovetail.models import LlamaShape
from dovetail.models.llama_cache import with_rows

sys.path.insert(0, str(Path(__file__).parent))
import jax_decode  # pyright: ignore[reportMissingImports]
from floors import floor_of, machine_here  # pyright: ignore
from peers import (  # pyright: ignore
    MODES,
    Peers,
    Wanted,
    add_flags,
    compared,
    profiled,
    raced,
    told_times,
    torch_here,
    wanted,
)

ROOM = 64
"""Rows of a cache beyond those that are filled."""


@dataclass(frozen=True, slots=True)
class Gpt2Shape:
    """The sizes of a decoder as GPT-2 has it: layer norms, biases, GELU, learned positions, all heads alike."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    inner: int = 3072
    vocabulary: int = 50257
    positions: int = 8192
    eps: float = 1e-5

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def width(self) -> int:
        return self.hidden // self.heads


Shape = LlamaShape | Gpt2Shape
SHAPES: Mapping[str, Shape] = {
    "qwen3_0.6b": LlamaShape(
        28, 1024, 16, 8, 3072, 151936, theta=1e6, eps=1e-6, normed_heads=True, dtype=bf16, head_width=128
    ),
    "llama_1b": LlamaShape(16, 2048, 32, 8, 8192, 128256, theta=5e5, dtype=bf16),
    "gpt2": Gpt2Shape(),
}


def step_graph(of: Shape, tokens: int = 1) -> Graph:
    """Tokens and caches in; logits of the last and the caches with their keys and values, in their memory, out."""
    if isinstance(of, Gpt2Shape):
        return _gpt2(of, tokens)
    full = models.llama_cached(of, batch=1, seq=tokens)
    outputs = {n: v for n, v in full.outputs.items() if n == "logits" or "cache" in n}
    return Graph.of(outputs, name="decode").donate({n: s for n, s in full.donated.items() if n in outputs})


def _gpt2(of: Gpt2Shape, tokens: int) -> Graph:
    builder = Builder("decode", lines=False)

    def linear(name: str, x: Value, into: int, out: int) -> Value:
        return x @ builder.param(f"{name}", bf16[into, out]) + builder.param(f"{name}.bias", bf16[out])

    def norm(name: str, x: Value) -> Value:
        gain, shift = (builder.param(f"{name}.{part}", bf16[of.hidden]) for part in ("gain", "shift"))
        return library.layer_norm.body(x, gain, shift, eps=of.eps)

    with builder.recording():
        ids, positions = builder.input("input_ids", i64[1, tokens]), builder.input("positions", i64[tokens])
        keys = builder.input("keys", i64["t"])
        keep = ops.less_equal(keys, ops.unsqueeze(positions, axes=(-1,)))
        x = ops.gather(builder.param("embedding", bf16[of.vocabulary, of.hidden]), ids, axis=0)
        x = x + ops.gather(builder.param("places", bf16[of.positions, of.hidden]), positions, axis=0)
        for index in range(of.layers):
            at = f"layers.{index}"
            old = [builder.input(f"{s}_cache.{index}", bf16[1, of.heads, "room", of.width]) for s in "kv"]
            y = norm(f"{at}.norm1", x)
            q, k, v = (
                ops.permute(
                    ops.split(linear(f"{at}.w{part}", y, of.hidden, of.hidden), axis=-1, size=of.width),
                    order=(-4, -2, -3, -1),
                )
                for part in "qkv"
            )
            new = [with_rows(cache, rows, positions) for cache, rows in zip(old, (k, v), strict=True)]
            seen = [ops.slice_(cache, axis=-2, start=0, stop=keep.shape[-1]) for cache in new]
            attended = library.attention.body(q, *seen, keep=keep, scale=of.width**-0.5, fill=float("-inf"))
            joined = ops.merge(ops.permute(attended, order=(-4, -2, -3, -1)), axis=-1)
            x = x + linear(f"{at}.wo", joined, of.hidden, of.hidden)
            inner = library.gelu.body(linear(f"{at}.up", norm(f"{at}.norm2", x), of.hidden, of.inner))
            x = x + linear(f"{at}.down", inner, of.inner, of.hidden)
            for side, value in zip("kv", new, strict=True):
                builder.output(f"new_{side}_cache.{index}", value, into=f"{side}_cache.{index}")
        x = ops.slice_(x, axis=-2, start=tokens - 1, stop=tokens) if tokens > 1 else x
        builder.output("logits", norm("norm", x) @ builder.param("head", bf16[of.hidden, of.vocabulary]))
    return builder.graph()


def weights_of(graph: Graph) -> dict[str, Any]:
    """Parameters that keep activations near one; parts of one pool of random numbers, which is quick to draw.

    Numbers are rounded once for each scale, not once for each of the hundreds of millions that are taken.
    """
    pool = np.random.default_rng(0).standard_normal(1 << 22, dtype=np.float32)

    @cache
    def scaled(by: float) -> Any:
        return (pool * np.float32(by)).astype(bf16.numpy)

    found: dict[str, Any] = {}
    for number, value in enumerate(graph.parameters):
        name, shape = str(value.attrs["name"]), tuple(int(str(n)) for n in value.shape)
        first = (number * 7919) % 65536
        if len(shape) == 1:
            content = pool[first : first + shape[0]] * np.float32(0.1) + (1.0 if "gain" in name else 0.0)
            found[name] = content.astype(bf16.numpy)
        else:
            is_table = name in ("embedding", "places")
            found[name] = np.resize(scaled(1.0 if is_table else shape[0] ** -0.5)[first:], shape)
    return found


def feeds_of(of: Shape, cached: int, tokens: int = 1) -> dict[str, Any]:
    """The tokens after `cached` ones, and caches with the keys and values of those."""
    rng = np.random.default_rng(1)
    found: dict[str, Any] = {"positions": np.arange(cached, cached + tokens), "keys": np.arange(cached + tokens)}
    found["input_ids"] = 7 + np.arange(tokens)[None] * 11 % 97
    rows = -(-(cached + tokens - 1 + ROOM) // ROOM) * ROOM
    for index in range(of.layers):
        for side in "kv":
            content = rng.standard_normal((1, of.kv_heads, rows, of.width), dtype=np.float32)
            found[f"{side}_cache.{index}"] = content.astype(bf16.numpy)
    return found


def traffic(of: Shape, weights: Mapping[str, Any], cached: int) -> int:
    """The bytes that tokens need: every weight but tables once, and the filled part of the caches."""
    read = sum(w.nbytes for name, w in weights.items() if name not in ("embedding", "places"))
    return read + 2 * of.layers * of.kv_heads * (cached + 1) * of.width * 2


def peer_of(
    torch: Any, of: Shape, weights: Mapping[str, Any], feeds: Mapping[str, Any], device: str, dtype: Any
) -> Any:
    """The same step as a module of torch, with the caches as buffers."""
    F: Any = torch.nn.functional
    Module: Any = torch.nn.Module
    llama = of if isinstance(of, LlamaShape) else None
    tokens, end = len(feeds["positions"]), int(feeds["positions"][-1]) + 1
    is_prompt = tokens == end > 1

    def there(array: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16).to(device, dtype)

    class Peer(Module):
        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            for name, content in weights.items():
                # torch multiplies by [out, in]; tables stay as they are.
                is_matrix = content.ndim == 2 and name not in ("embedding", "places")
                held = there(content)
                held = held.T.contiguous() if is_matrix else held
                self.register_buffer(name.replace(".", "_"), held)
            for name, content in feeds.items():
                if "cache" in name:
                    self.register_buffer(name.replace(".", "_"), there(content))
            if llama is not None:
                rates = llama.theta ** -(torch.arange(0, of.width, 2, dtype=torch.float64) / of.width)
                turns = torch.outer(torch.from_numpy(feeds["positions"]).double(), torch.cat([rates, rates]))
                self.register_buffer("cos", turns.cos().to(device, dtype))
                self.register_buffer("sin", turns.sin().to(device, dtype))

        def w(self, name: str) -> Any:
            return getattr(self, name.replace(".", "_"))

        def norm(self, name: str, x: Any) -> Any:
            if llama is not None:
                return F.rms_norm(x, x.shape[-1:], self.w(f"{name}.gain"), of.eps)
            return F.layer_norm(x, x.shape[-1:], self.w(f"{name}.gain"), self.w(f"{name}.shift"), of.eps)

        def linear(self, name: str, x: Any) -> Any:
            return F.linear(x, self.w(name), None if llama is not None else self.w(f"{name}.bias"))

        def heads(self, x: Any, count: int) -> Any:
            return x.view(1, tokens, count, of.width).transpose(1, 2)

        def turned(self, x: Any) -> Any:
            half = of.width // 2
            return x * self.cos + torch.cat([-x[..., half:], x[..., :half]], -1) * self.sin

        def forward(self, ids: Any, positions: Any) -> Any:
            x = F.embedding(ids, self.embedding)
            if llama is None:
                x = x + F.embedding(positions, self.places)
            for index in range(of.layers):
                at = f"layers.{index}"
                y = self.norm(f"{at}.norm1", x)
                q = self.heads(self.linear(f"{at}.wq", y), of.heads)
                k, v = (self.heads(self.linear(f"{at}.w{part}", y), of.kv_heads) for part in "kv")
                if llama is not None and llama.normed_heads:
                    q, k = self.norm(f"{at}.q_norm", q), self.norm(f"{at}.k_norm", k)
                if llama is not None:
                    q, k = self.turned(q), self.turned(k)
                for side, rows in (("k", k), ("v", v)):
                    self.w(f"{side}_cache.{index}").index_copy_(2, positions, rows)
                keys, values = (self.w(f"{side}_cache.{index}")[:, :, :end] for side in "kv")
                attended = F.scaled_dot_product_attention(
                    q, keys, values, is_causal=is_prompt, enable_gqa=of.heads != of.kv_heads
                )
                x = x + self.linear(f"{at}.wo", attended.transpose(1, 2).reshape(1, tokens, -1))
                y = self.norm(f"{at}.norm2", x)
                if llama is not None:
                    inner = F.silu(self.linear(f"{at}.gate", y)) * self.linear(f"{at}.up", y)
                else:
                    inner = F.gelu(self.linear(f"{at}.up", y))
                x = x + self.linear(f"{at}.down", inner)
            return F.linear(self.norm("norm", x[:, -1:]), self.w("head"))

    return Peer().eval()


def measured(
    torch: Any,
    name: str,
    cached: int,
    *,
    tokens: int,
    beside: Wanted,
    kernels: bool,
    both: bool = False,
) -> None:
    """One line for a shape, a length of the cache and a number of tokens."""
    from dovetail.targets.cuda.driver.driver import driver

    of = SHAPES[name]
    graph = step_graph(of, tokens)
    weights, feeds = weights_of(graph), feeds_of(of, cached, tokens)
    start = time.perf_counter()
    program = dovetail.compile(graph, target="cuda").bind(weights)
    ours = program.to_device(feeds)
    got = program.run(ours, outputs="device")["logits"].numpy()
    first = time.perf_counter() - start
    network = peer_of(torch, of, weights, feeds, "cuda", torch.bfloat16)
    given = [torch.from_numpy(feeds[n]).cuda() for n in ("input_ids", "positions")]
    peers = Peers({"dovetail": lambda: program.run(ours, outputs="device")})
    was = driver().description
    ways: Mapping[str, Cooperative] = {"launches": "off", "resident": "on"} if both else {}
    for way, mode in ways.items():
        driver().description = replace(was, cooperative=mode)
        other = dovetail.compile(graph, target="cuda").bind(weights)
        there: Any = other.to_device(feeds)
        peers.steps[way] = lambda other=other, there=there: other.run(there, outputs="device")
    driver().description = was
    with torch.no_grad():
        theirs = network(*given).double().cpu().numpy()
        exact = peer_of(torch, of, weights, feeds, "cuda", torch.float64)(*given).cpu().numpy()
        peers.add_torch(torch, network, given, beside.modes)
        by_jax = peers.add_jax(
            beside.attentions, lambda jax, attention: jax_decode.step_of(jax, of, weights, feeds, attention)
        )
        found = {name: np.asarray(step.result) for name, step in by_jax.items()}
        times: Mapping[str, Any] = raced(torch, peers.steps)

    def error(found: Any) -> float:
        return float(np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact))

    others = "".join(f" {name}_error={error(logits):.1e}" for name, logits in found.items())
    moved = traffic(of, weights, cached + tokens - 1)
    work = f"decode_{name}_{cached}" if tokens == 1 else f"prompt_{name}_{cached}+{tokens}"
    floor = floor_of(program, feeds, machine_here(), moved)
    print(
        f"bench {work} target=cuda dtype=bf16 {compared(times, floor, own=('dovetail', *ways))} {told_times(times)} "
        f"error={error(got):.1e} torch_error={error(theirs):.1e}{others} first_call={first:.2f}s "
        f"steps={len(program.plan.phase('run'))} "
        f"bandwidth={moved / times['dovetail'].seconds / 1e12:.2f}TB/s{peers.told}",
        flush=True,
    )
    if kernels:
        profiled(torch, peers.steps["dovetail"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="*", choices=[*SHAPES], default=[*SHAPES])
    parser.add_argument("--cached", nargs="*", type=int, default=[512, 4096])
    parser.add_argument(
        "--tokens", type=int, default=1, help="more than 1: a prompt; with --cached 0 torch has it causal"
    )
    parser.add_argument("--compile", nargs="*", choices=MODES, help="beside torch.compile in these modes, or in both")
    add_flags(parser)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--dependent", choices=["always", "never"], help="whether kernels start while others run")
    parser.add_argument(
        "--resident",
        choices=["auto", "on", "off"],
        default="auto",
        help="layers are passes of one kernel: where the estimate is lower, wherever they can, nowhere",
    )
    parser.add_argument("--both", action="store_true", help="measure it on and off beside what the estimates choose")
    args = parser.parse_args()
    beside = wanted(args, () if args.compile is None else args.compile or MODES)
    torch: Any = torch_here()
    if torch is None:
        return
    from dovetail.targets.cuda.driver.driver import driver

    driver().description = replace(driver().description, cooperative=args.resident)
    if args.dependent:
        intensity = inf if args.dependent == "always" else 0.0
        driver().description = replace(driver().description, dependent_intensity=intensity)
    for name in args.shape:
        for cached in args.cached if args.tokens == 1 else (0,):
            measured(
                torch,
                name,
                cached,
                tokens=args.tokens,
                beside=beside,
                kernels=args.kernels,
                both=args.both,
            )


if __name__ == "__main__":
    main()
