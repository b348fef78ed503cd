"""The graphs whose generated code is compared, and which of them are compared for which devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Literal

from dovetail import Graph, library, ops
from dovetail.graphs import value_and_grad
from dovetail.ir.dim import Size, symbol
from dovetail.ir.dtype import DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8
from dovetail.ir.leaf import input, param
from dovetail.ir.text import parse_graph
from dovetail.ir.value import Value
from dovetail.library.block_formats import FORMATS
from dovetail.models.bert import BertShape, bert
from dovetail.models.decoder import cached_decoder
from dovetail.models.decoder_shape import DecoderShape, parameter_shapes
from dovetail.runtime.load import load
from dovetail.runtime.vocabulary import vocabulary
from tests.codegen.generated import CORPUS, EXPORTERS, WORKLOADS, weightless
from tests.targets.cuda.benchmark import benchmark
from tests.targets.cuda.graphs import CASES
from tests.targets.cuda.products import PRODUCTS

Kind = Literal["cpu", "cuda"]
Precision = Literal["exact", "fast", "bf16"]


@dataclass(frozen=True, slots=True)
class Case:
    """A graph, how it is compiled, and for what."""

    name: str
    build: Callable[[], Graph]
    kinds: tuple[Kind, ...] = ("cpu", "cuda")
    devices: tuple[str, ...] = ()
    """The devices that it is compiled for; all of its kinds if empty."""
    quick: bool = False
    """Whether it is one of the few that are compared while one works."""
    golden: tuple[str, ...] = ()
    """The devices whose part of the golden table has it although it is not quick."""
    fused: bool = True
    """Whether fusions are found as `compile` does; otherwise the graph is planned as it is."""
    strict: bool = False
    precision: Precision = "exact"
    cooperative: Literal["auto", "on", "off"] = "auto"
    """Whether layers become passes of a persistent kernel."""

    def takes(self, device: str, kind: Kind) -> bool:
        return kind in self.kinds and (not self.devices or device in self.devices)


def cases() -> Iterator[Case]:
    """Every case, in the order in which they are compiled."""
    yield from _recorded()
    yield from _products()
    yield from _blocks()
    yield from _attention()
    yield from _models()
    yield from _convolutions()
    yield from _for_gpus()


_FIRST = ("avx512", "avx2", "neon")
"""The devices whose golden digest is of all recorded graphs."""


def _recorded() -> Iterator[Case]:
    """The benchmark models, the exporters' files and the graphs of kernel tests."""
    for name, build in WORKLOADS.items():
        yield Case(f"bench:{name}", partial(weightless, build), golden=_FIRST)
    for path in sorted(EXPORTERS.glob("*.onnx")):
        yield Case(
            f"exporters:{path.stem}", partial(_loaded, path), devices=(*_FIRST, "avx512_amx", "sm_90a"), golden=_FIRST
        )
    counts: dict[str, int] = {}
    for number, entry in enumerate(CORPUS.read_text(encoding="utf-8").split("\n# ")[1:]):
        header, _, text = entry.partition("\n")
        source, *options = header.split()
        counts[source] = counts.get(source, 0) + 1
        yield Case(
            f"{source}#{counts[source]}",
            partial(_parsed, text),
            quick=number % 12 == 0,
            golden=_FIRST,
            fused=False,
            strict="strict" in options,
        )


def _loaded(path: Any) -> Graph:
    return load(path)


@cache
def _words() -> Any:
    return vocabulary()


def _parsed(text: str) -> Graph:
    return parse_graph(text, _words())


def _products() -> Iterator[Case]:
    """GEMM and GEMV of every dtype, with epilogues, of stored weights and of two activations."""
    for dtype in (f32, f16, bf16, f64):
        for m, k, n in _SIZES:
            quick = dtype in (f32, bf16) and (m, k, n) in _SIZES[1:4]
            yield Case(f"gemm:{dtype.name}_{m}x{k}x{n}", partial(_gemm, dtype, m, k, n), quick=quick, fused=False)
    for act in ("gelu", "relu", "tanh"):
        yield Case(f"gemm:linear_{act}", partial(_linear, f32, 70, act), quick=act == "gelu", fused=False)
        yield Case(f"gemm:linear_{act}_f16", partial(_linear, f16, 70, act), fused=False)
    for m in (1, 40, "m"):
        yield Case(f"gemm:swiglu_{m}", partial(_swiglu, f32, m), quick=m == 1)
        yield Case(f"gemm:swiglu_f16_{m}", partial(_swiglu, f16, m))
        yield Case(f"gemm:normed_{m}", partial(_normed, m))
        yield Case(f"gemm:bytes_{m}", partial(_bytes, u8, m), quick=m == 40)
        yield Case(f"gemm:bytes_signed_{m}", partial(_bytes, i8, m))
    for m, k, n in _SIZES:
        for precision in _ROUNDED:
            devices = ("avx512_amx",) if precision == "bf16" else ()
            name = f"gemm:f32_{precision}_{m}x{k}x{n}"
            build = partial(_gemm, f32, m, k, n)
            quick = precision == "bf16" and m in (1, 128)
            yield Case(name, build, ("cpu",), devices, quick=quick, fused=False, precision=precision)
    for layout in ("nn", "tn", "nt", "tt"):
        for batch, m, k, n in (((), 33, 200, 40), ((2, 3), 13, 30, 9), ((), 12, 530, 400), ((), "m", "k", "n")):
            name = f"pair:{layout}_{'x'.join(map(str, (*batch, m, k, n)))}"
            build = partial(_pair, layout, batch, m, k, n)
            yield Case(name, build, quick=layout == "nt" and m == 33, fused=False)


_SIZES: tuple[tuple[Size | str, int, int], ...] = (
    (1, 768, 3072), (1, 1024, 1024), (4, 1024, 512), (128, 768, 512), (33, 100, 70),
    (512, 1024, 1024), (64, 4096, 64), ("m", 256, 300),
)  # fmt: skip
_ROUNDED: tuple[Precision, ...] = ("fast", "bf16")


def _size(n: Size | str) -> Size:
    return symbol(n) if isinstance(n, str) else n


def _of(value: Value) -> Graph:
    return Graph.of({"y": value})


def _gemm(dtype: DType, m: Size | str, k: int, n: int) -> Graph:
    return _of(input("x", dtype[_size(m), k]) @ param("w", dtype[k, n]))


def _linear(dtype: DType, m: int, act: Any) -> Graph:
    x, w, b = input("x", dtype[m, 200]), param("w", dtype[200, 96]), param("b", dtype[96])
    return _of(library.linear(x, w, b, act=act))


def _swiglu(dtype: DType, m: Size | str) -> Graph:
    gate, up, down = (param(n, dtype[s]) for n, s in (("g", (256, 512)), ("u", (256, 512)), ("d", (512, 256))))
    x = input("x", dtype[_size(m), 256])
    return _of(x + library.swiglu(x, gate, up) @ down)


def _normed(m: Size | str) -> Graph:
    x, gain = input("x", f16[_size(m), 512]), param("gain", f16[512])
    return _of(library.rms_norm(x, gain, eps=1e-6) @ param("w", f16[512, 640]))


def _bytes(dtype: DType, m: Size | str) -> Graph:
    x, w = input("x", dtype[_size(m), 384]), param("w", i8[384, 100])
    return _of((ops.cast(x, dtype=i32) - 7) @ ops.cast(w, dtype=i32))


def _pair(layout: str, batch: tuple[int, ...], m: Size | str, k: Size | str, n: Size | str) -> Graph:
    m, k, n = _size(m), _size(k), _size(n)
    x = input("x", f32[(*batch, k, m) if layout[0] == "t" else (*batch, m, k)])
    y = input("y", f32[(*batch, n, k) if layout[1] == "t" else (*batch, k, n)])
    turned = [ops.permute(v, order=(-1, -2)) if how == "t" else v for v, how in zip((x, y), layout, strict=True)]
    return _of(turned[0] @ turned[1])


def _blocks() -> Iterator[Case]:
    """Products with weights in blocks of every format."""
    for kind in FORMATS:
        for rows in (1, 2, 4, 8, 32):
            quick = kind in ("q8_0", "q4_k", "q6_k") and rows in (1, 8)
            build = partial(_in_blocks, kind, rows)
            yield Case(f"blocks:{kind}_{rows}", build, quick=quick)
            yield Case(f"blocks:{kind}_{rows}_fast", build, ("cpu",), quick=quick and rows == 8, precision="fast")
    for kind in ("q8_0", "q4_1", "q6_k"):
        for precision in ("exact", *_ROUNDED):
            devices = ("avx512_amx",) if precision == "bf16" else ()
            kinds: tuple[Kind, ...] = ("cpu", "cuda") if precision == "exact" else ("cpu",)
            for name, build in (("m", partial(_in_blocks, kind, "m")), ("gated", partial(_gated, kind))):
                yield Case(f"blocks:{kind}_{name}_{precision}", build, kinds, devices, precision=precision)


def _stored(name: str, kind: Any, n: int, k: int) -> Value:
    of = FORMATS[kind]
    stored = param(name, u8[n, k // of.elements * of.bytes])
    return ops.permute(library.dequantise_blocks(stored, format=kind), order=(-1, -2))


def _in_blocks(kind: str, rows: Size | str) -> Graph:
    return _of(input("x", f32[_size(rows), 1024]) @ _stored("w", kind, 520, 1024))


def _gated(kind: str) -> Graph:
    x = input("x", f32[3, 512])
    return _of(library.swiglu(x, _stored("g", kind, 256, 512), _stored("u", kind, 256, 512)))


_HIDDEN: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "kept": {"keep": True, "fill": -math.inf},
    "causal": {"causal": True, "fill": -math.inf},
    "window": {"causal": True, "window": 40, "fill": -math.inf},
    "softcap": {"softcap": 3.0},
}


@dataclass(frozen=True, slots=True)
class _Heads:
    """The sizes of an attention."""

    queries: Size | str
    keys: Size | str
    width: int = 64
    heads: int = 4
    shared: int = 2
    dtype: DType = f32
    cache: DType | None = None
    """Of keys and values that are read from a cache with more room."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def value(self) -> Value:
        q = input("q", self.dtype[1, self.heads, _size(self.queries), self.width])
        k, v = (self._side(name) for name in "kv")
        options = dict(self.options)
        if options.pop("keep", False):
            options["keep"] = input("keep", bool_[_size(self.queries), _size(self.keys)])
        groups = self.heads // self.shared
        return library.attention(q, k, v, scale=self.width**-0.5, groups=groups, **options)

    def _side(self, name: str) -> Value:
        if self.cache is None:
            return input(name, self.dtype[1, self.shared, _size(self.keys), self.width])
        whole = input(name, self.cache[1, self.shared, symbol("room"), self.width])
        rows = ops.slice_(whole, axis=-2, start=0, stop=_size(self.keys))
        return rows if self.cache is self.dtype else ops.cast(rows, dtype=self.dtype)


def _attend(of: _Heads) -> Graph:
    return _of(of.value())


def _attend_back(of: _Heads) -> Graph:
    value = of.value()
    loss = ops.reduce_sum(value * input("g", value.tensor), axes=(-4, -3, -2, -1))
    return value_and_grad(_of(loss), ["q", "k", "v"])


def _attention() -> Iterator[Case]:
    """Attention of a few and of many queries, its caches, masks and gradients."""
    for dtype in (f32, f16, bf16):
        for queries, keys, width in ((1, 300, 64), (4, "t", 128), (70, 130, 64), (512, 512, 128), ("s", "t", 80)):
            for name, options in _HIDDEN.items():
                of = _Heads(queries, keys, width, dtype=dtype, options=options)
                quick = dtype in (f32, f16) and width == 64 and name == "kept"
                yield Case(f"attention:{dtype.name}_{queries}x{keys}x{width}_{name}", partial(_attend, of), quick=quick)
    for dtype in (f32, f16, bf16):
        for queries in (1, 3, 40):
            of = _Heads(queries, "t", 128, cache=dtype, options=_HIDDEN["kept"])
            quick = dtype is f16 and queries == 1
            yield Case(f"attention:cache_{dtype.name}_{queries}", partial(_attend, of), quick=quick)
    for queries in (40, 200):
        of = _Heads(queries, 300, options=_HIDDEN["kept"])
        yield Case(f"attention:fast_{queries}", partial(_attend, of), ("cpu",), quick=queries == 40, precision="fast")
    for dtype in (f32, f16):
        for queries, keys, width in ((9, 37, 8), (64, 128, 64), ("s", "t", 32)):
            for name in ("plain", "kept", "causal"):
                of = _Heads(queries, keys, width, dtype=dtype, options=_HIDDEN[name])
                quick = dtype is f32 and (width, name) == (64, "causal")
                build = partial(_attend_back, of)
                yield Case(f"attention backward:{dtype.name}_{queries}x{keys}x{width}_{name}", build, quick=quick)


_DECODE = benchmark("decode")
_SMALL = DecoderShape(layers=2, hidden=256, heads=4, kv_heads=2, width=64, inner=512, vocabulary=512, context=256)
_WIDE = replace(_SMALL, layers=3, hidden=1024, heads=16, kv_heads=8, inner=3072, vocabulary=1024, context=2048)


def _decoder(of: DecoderShape, kind: str, **options: Any) -> Graph:
    sizes = parameter_shapes(of)
    return cached_decoder(of, {name: kind if len(size) == 2 else "f32" for name, size in sizes.items()}, **options)


def _step(name: str, tokens: int = 1, layers: int = 3) -> Graph:
    return _DECODE.step_graph(replace(_DECODE.SHAPES[name], layers=layers, vocabulary=1024), tokens)


def _models() -> Iterator[Case]:
    """Decoders, one token and prompts, and encoders."""
    for kind in ("f32", "q8_0", "q4_k"):
        yield Case(f"decoder:step_{kind}", partial(_decoder, _SMALL, kind), quick=kind == "q4_k")
        yield Case(f"decoder:prompt_{kind}", partial(_decoder, _SMALL, kind, seq="s"))
    yield Case("decoder:step_f16_cache", partial(_decoder, _SMALL, "q8_0", cache="f16", chooses=True))
    yield Case("decoder:batch", partial(_decoder, _SMALL, "f32", batch=4))
    for dtype in (f32, f16):
        for batch, seq in ((1, 16), (1, 128), (32, 128)):
            build = partial(bert, BertShape(layers=1, dtype=dtype), batch=batch, seq=seq)
            yield Case(f"encoder:{dtype.name}_{batch}x{seq}", build)
        yield Case(f"encoder:{dtype.name}_any", partial(bert, BertShape(layers=1, dtype=dtype)))


def _convolutions() -> Iterator[Case]:
    """Convolutions that the networks above do not have."""
    for dtype in (f32, f16):
        for name, (x, w, options) in _FILTERS.items():
            build = partial(_conv, dtype, x, w, options)
            yield Case(f"conv:{dtype.name}_{name}", build, quick=name in ("deep", "by_channel"))


_FILTERS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]]] = {
    "first": ((1, 3, 64, 64), (32, 3, 3, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1)}),
    "deep": ((1, 64, 28, 28), (64, 64, 3, 3), {"padding": (1, 1, 1, 1)}),
    "point": ((2, 64, 28, 28), (128, 64, 1, 1), {}),
    "few_pixels": ((1, 256, 7, 7), (256, 256, 3, 3), {"padding": (1, 1, 1, 1)}),
    "dilated": ((1, 32, 28, 28), (32, 32, 3, 3), {"dilations": (2, 2), "padding": (2, 2, 2, 2)}),
    "groups": ((1, 32, 20, 20), (64, 8, 3, 3), {"groups": 4}),
    "by_channel": ((1, 64, 56, 56), (64, 1, 3, 3), {"groups": 64, "padding": (1, 1, 1, 1)}),
    "along": ((1, 80, 300), (64, 80, 3), {"strides": (1,), "dilations": (1,), "padding": (1, 1)}),
}


def _conv(dtype: DType, x: tuple[int, ...], w: tuple[int, ...], options: Mapping[str, Any]) -> Graph:
    b = param("b", dtype[w[0], *([1] * (len(w) - 2))])
    return _of(library.conv_bias_act(input("x", dtype[x]), param("w", dtype[w]), b, act="relu", **options))


def _for_gpus() -> Iterator[Case]:
    """What the kernel tests of GPUs compile, and layers as passes of a persistent kernel."""
    for name, case in CASES.items():
        build = partial(Graph.of, case.outputs)
        yield Case(f"cases:{name}", build, ("cuda",), quick=name in ("norms_f32_7x12", "moves_f32_33x70"), fused=False)
    for name, case in PRODUCTS.items():
        quick = name in ("contractions_f16", "attention_one_query_long", "pairs_f16")
        yield Case(f"products:{name}", partial(Graph.of, case.outputs), ("cuda",), quick=quick, fused=False)
    steps = {name: partial(_step, name, layers=4) for name in _DECODE.SHAPES}
    steps |= {f"wide_{kind}": partial(_decoder, _WIDE, kind) for kind in ("q8_0", "q4_0", "q4_k", "q6_k")}
    for name, build in steps.items():
        for cooperative in ("on", "off"):
            quick = (name, cooperative) in (("qwen3_0.6b", "on"), ("wide_q8_0", "on"))
            yield Case(f"step:{name}_{cooperative}", build, ("cuda",), quick=quick, cooperative=cooperative)
    yield Case("prompt:qwen3_0.6b", partial(_step, "qwen3_0.6b", 512, 1), ("cuda",))
    for dtype in (f16, f32):
        build = partial(bert, BertShape(layers=3, dtype=dtype), batch=1, seq=16)
        yield Case(f"encoder:persistent_{dtype.name}", build, ("cuda",), cooperative="on")
    yield Case("rows:long", _rows, ("cuda",), fused=False)


def _rows() -> Graph:
    x = input("x", f32[9, 5000])
    at = input("at", i64[7])
    return Graph.of(
        {
            "sorted": ops.sort(x)[0],
            "summed": ops.cum_sum(x, axis=-1),
            "best": ops.top_k(x, k=50)[1],
            "rows": ops.gather(x, at, axis=0),
        }
    )
