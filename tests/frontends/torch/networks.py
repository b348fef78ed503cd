"""Small networks of many architectures in plain torch, each with a call and the sizes that may change."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional
Tensor = Any


@dataclass(frozen=True, slots=True)
class Network:
    """A module, a call of it, and what its report must say."""

    module: Any
    args: tuple[Any, ...]
    dynamic: Any = None
    fused: dict[str, int] = field(default_factory=dict[str, int])
    """Rules that fire at least so often."""


NETWORKS: dict[str, Callable[[], Network]] = {}


def network(build: Callable[[], Network]) -> Callable[[], Network]:
    NETWORKS[build.__name__] = build
    return build


def batch(*shape: int) -> Any:
    return torch.randn(2, *shape)


@network
def mlp() -> Network:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    return Network(module, (batch(8),), ({0: "batch"},), {"linear": 2})


@network
def residual_mlp() -> Network:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(F.silu(self.up(self.norm(x))))

    return Network(nn.Sequential(Block(), Block()), (batch(5, 8),), ({0: "batch", 1: "length"},), {"linear": 2})


class Attention(nn.Module):
    def __init__(self, width: int = 16, heads: int = 4, kv_heads: int | None = None) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads or heads, width // heads
        self.q = nn.Linear(width, width)
        self.k, self.v = (nn.Linear(width, self.kv_heads * self.size) for _ in range(2))
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.size).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        q, k, v = self.split(self.q(x), self.heads), self.split(self.k(x), self.kv_heads), self.v(x)
        y = F.scaled_dot_product_attention(
            q, k, self.split(v, self.kv_heads), attn_mask=mask, is_causal=causal, enable_gqa=self.kv_heads != self.heads
        )
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    def __init__(self, width: int = 16, *, kv_heads: int | None = None, causal: bool = False) -> None:
        super().__init__()
        self.attention, self.causal = Attention(width, kv_heads=kv_heads), causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.first(x), mask, self.causal)
        return x + self.down(F.gelu(self.up(self.second(x))))


@network
def encoder() -> Network:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(32, 16), nn.Embedding(16, 16)
            self.layers = nn.ModuleList([Layer() for _ in range(2)])
            self.norm = nn.LayerNorm(16)

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
            keep = mask[:, None, None, :].to(torch.bool)
            for layer in self.layers:
                x = layer(x, keep)
            return self.norm(x)

    ids, mask = torch.randint(0, 32, (2, 6)), torch.ones(2, 6, dtype=torch.int64)
    mask[1, 4:] = 0
    axes = {0: "batch", 1: "length"}
    return Network(Encoder(), (ids, mask), {"ids": axes, "mask": axes}, {"attention": 2, "layer_norm": 1})


@network
def decoder() -> Network:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(32, 16)
            self.layers = nn.ModuleList([Layer(causal=True) for _ in range(2)])
            self.head = nn.Linear(16, 32, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    return Network(Decoder(), (torch.randint(0, 32, (2, 6)),), ({0: "batch", 1: "length"},), {"attention": 2})


@network
def grouped_query_attention() -> Network:
    return Network(Layer(kv_heads=2), (batch(6, 16),), ({0: "batch", 1: "length"},), {"attention": 1})


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


@network
def llama() -> Network:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(16))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Norm(), Norm()
            self.q, self.k, self.v, self.o = (nn.Linear(16, n, bias=False) for n in (16, 8, 8, 16))
            self.gate, self.up, self.down = (nn.Linear(*n, bias=False) for n in ((16, 32), (16, 32), (32, 16)))

        def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            y, (b, s, _) = self.first(x), x.shape
            q, k, v = (f(y).view(b, s, -1, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
            q, k = rotary(q, cos, sin), rotary(k, cos, sin)
            k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(a.transpose(1, 2).reshape(b, s, 16))
            y = self.second(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(32, 16)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.register_buffer("speeds", 1.0 / 10000 ** (torch.arange(0, 4, 2) / 4), persistent=False)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)
            angles = torch.arange(ids.shape[1])[:, None] * self.speeds
            wide = torch.cat((angles, angles), dim=-1)
            for block in self.blocks:
                x = block(x, wide.cos(), wide.sin())
            return x

    ids = torch.randint(0, 32, (2, 6))
    return Network(Llama(), (ids,), ({0: "batch", 1: "length"},), {"rope_attention": 2, "rms_norm": 2, "swiglu": 2})


@network
def vision_transformer() -> Network:
    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 16, 4, stride=4)
            self.token = nn.Parameter(torch.randn(1, 1, 16))
            self.places = nn.Parameter(torch.randn(1, 17, 16))
            self.layers = nn.Sequential(Layer(), Layer())
            self.head = nn.Linear(16, 10)

        def forward(self, image: Tensor) -> Tensor:
            x = self.patches(image).flatten(2).transpose(1, 2)
            x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.places
            return self.head(self.layers(x)[:, 0])

    return Network(Vit(), (batch(3, 16, 16),), ({0: "batch"},), {"attention": 2, "linear": 2})


def conv_norm(inside: int, outside: int, size: int = 3, stride: int = 1, groups: int = 1, act: Any = None) -> Any:
    conv = nn.Conv2d(inside, outside, size, stride, size // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(outside)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    return nn.Sequential(conv, norm, nn.ReLU() if act is None else act)


class Bottleneck(nn.Module):
    def __init__(self, width: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(width, width // 2, 1), conv_norm(width // 2, width, 3, stride, act=nn.Identity())
        )
        self.skip = nn.Identity() if stride == 1 else conv_norm(width, width, 1, stride, act=nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


@network
def resnet() -> Network:
    stem = [conv_norm(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1)]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    module = nn.Sequential(*stem, Bottleneck(8), Bottleneck(8, 2), *tail)
    return Network(module, (batch(3, 32, 32),), ({0: "batch"},), {"conv_batch_norm": 6})


@network
def mobilenet() -> Network:
    class Inverted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.deep = (
                conv_norm(8, 16, 1, act=nn.Hardswish()),
                conv_norm(16, 16, 3, groups=16, act=nn.ReLU6()),
            )
            self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1))
            self.down = conv_norm(16, 8, 1, act=nn.Identity())

        def forward(self, x: Tensor) -> Tensor:
            y = self.deep(self.up(x))
            return x + self.down(y * F.hardsigmoid(self.squeeze(y)))

    module = nn.Sequential(conv_norm(3, 8, 3, 2), Inverted(), Inverted())
    return Network(module, (batch(3, 16, 16),), ({0: "batch"},), {"conv_batch_norm": 4})


@network
def convnext() -> Network:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deep, self.norm = nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.LayerNorm(8)
            self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
            self.scale = nn.Parameter(torch.full((8,), 0.1))

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.deep(x).permute(0, 2, 3, 1))
            return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)

    return Network(nn.Sequential(nn.Conv2d(3, 8, 4, 4), Block(), Block()), (batch(3, 32, 32),), ({0: "batch"},))


@network
def mixer() -> Network:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 8, 4, 4)
            self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
            self.channels = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
            self.norm = nn.LayerNorm(8)

        def forward(self, image: Tensor) -> Tensor:
            x = self.patches(image).flatten(2)
            x = x + self.tokens(x)
            return self.channels(self.norm(x.transpose(1, 2))).mean(dim=1)

    return Network(Mixer(), (batch(3, 16, 16),), ({0: "batch"},), {"linear": 3})


@network
def densenet() -> Network:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.ModuleList([nn.Conv2d(4 + 4 * i, 4, 3, padding=1) for i in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for step in self.steps:
                x = torch.cat((x, F.relu(step(x))), dim=1)
            return F.avg_pool2d(x, 2)

    return Network(Dense(), (batch(4, 8, 8),), ({0: "batch"},))


@network
def unet() -> Network:
    class Unet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.low = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
            self.norm = nn.GroupNorm(4, 16)
            self.up, self.last = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            high = F.silu(self.first(x))
            low = F.silu(self.norm(self.low(high)))
            return self.last(torch.cat((high, self.up(low)), dim=1))

    return Network(Unet(), (batch(3, 16, 16),), ({0: "batch"},), {"group_norm": 1})


@network
def feature_pyramid() -> Network:
    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.levels = nn.ModuleList([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)])
            self.heads = nn.ModuleList([nn.Conv2d(8, 6, 1) for _ in range(2)])

        def forward(self, x: Tensor) -> list[Tensor]:
            a = F.relu(self.levels[0](x))
            b = F.relu(self.levels[1](a))
            a = a + F.interpolate(b, scale_factor=2.0, mode="nearest")
            return [head(y).permute(0, 2, 3, 1).sigmoid() for head, y in zip(self.heads, (a, b), strict=True)]

    return Network(Pyramid(), (batch(3, 16, 16),), ({0: "batch"},))


@network
def segmentation() -> Network:
    class Segmentation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=2, dilation=2))
            self.head = nn.Conv2d(8, 5, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.head(self.body(x))
            return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False).argmax(dim=1)

    return Network(Segmentation(), (batch(3, 16, 16),), ({0: "batch"},))


@network
def windowed_attention() -> Network:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention()

        def forward(self, x: Tensor) -> Tensor:
            b, h, w, c = x.shape
            y = torch.roll(x, shifts=(-2, -2), dims=(1, 2))
            y = y.view(b, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
            y = self.attention(y).view(b, h // 4, w // 4, 4, 4, c).transpose(2, 3).reshape(b, h, w, c)
            return x + torch.roll(y, shifts=(2, 2), dims=(1, 2))

    return Network(Windows(), (batch(8, 8, 16),), ({0: "batch"},), {"attention": 1})


@network
def cross_attention() -> Network:
    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.queries = nn.Parameter(torch.randn(3, 16))
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            queries = self.queries.expand(x.shape[0], -1, -1)
            return self.attention(queries, x, x, need_weights=False)[0]

    return Network(Cross(), (batch(5, 16),), ({0: "batch"},))


@network
def transformer_of_torch() -> Network:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return Network(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (batch(5, 16),), {"src": {0: "batch"}})


@network
def relative_bias() -> Network:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.attention = nn.Embedding(8, 4), Attention()

        def forward(self, x: Tensor) -> Tensor:
            place = torch.arange(x.shape[1])
            apart = (place[None, :] - place[:, None]).abs()
            near = torch.log(apart.float().clamp(min=1)) * 2
            bucket = torch.where(apart < 4, apart, torch.min(4 + near.to(torch.int64), torch.full_like(apart, 7)))
            return self.attention(x, self.table(bucket).permute(2, 0, 1)[None])

    return Network(Biased(), (batch(6, 16),), ({0: "batch", 1: "length"},), {"attention": 1})


@network
def alibi() -> Network:
    class Alibi(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention()
            self.register_buffer("slopes", 2.0 ** -torch.arange(1.0, 5.0))

        def forward(self, x: Tensor) -> Tensor:
            place = torch.arange(x.shape[1])
            bias = -(place[:, None] - place[None, :]).abs() * self.slopes[:, None, None]
            hidden = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf")), diagonal=1)
            return self.attention(x, (bias + hidden)[None])

    return Network(Alibi(), (batch(6, 16),), ({0: "batch", 1: "length"},))


@network
def complex_rotary() -> Network:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            angles = torch.outer(torch.arange(8.0), 1.0 / 100 ** (torch.arange(0, 4, 2) / 4))
            self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

        def forward(self, x: Tensor) -> Tensor:
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * self.turns[: x.shape[1]]).flatten(-2)

    return Network(Rotary(), (batch(6, 4),), ({0: "batch"},))


@network
def static_cache_step() -> Network:
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
            self.register_buffer("keys", torch.zeros(1, 4, 8, 4))
            self.register_buffer("values", torch.zeros(1, 4, 8, 4))

        def forward(self, x: Tensor, position: Tensor) -> Tensor:
            q, k, v = (t.view(1, 1, 4, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
            self.keys.index_copy_(2, position, k)
            self.values.index_copy_(2, position, v)
            keep = torch.arange(8)[None, None, None, :] <= position
            y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=keep)
            return self.out(y.transpose(1, 2).reshape(1, 1, 16))

    return Network(Step(), (torch.randn(1, 1, 16), torch.tensor([3])), None, {"attention": 1})


@network
def growing_cache_step() -> Network:
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x: Tensor, past: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            q, k, v = (t.view(2, 1, 4, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
            return F.scaled_dot_product_attention(q, k, v), (k, v)

    past = {2: "past"}
    return Network(Step(), (batch(1, 16), (batch(4, 5, 4), batch(4, 5, 4))), (None, (past, past)), {"attention": 1})


@network
def experts() -> Network:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(8, 4)
            self.up, self.down = nn.Parameter(torch.randn(4, 8, 16)), nn.Parameter(torch.randn(4, 16, 8))

        def forward(self, x: Tensor) -> Tensor:
            weight, chosen = self.router(x).softmax(dim=-1).topk(2, dim=-1)
            gate = torch.zeros(x.shape[0], 4).scatter(1, chosen, weight / weight.sum(dim=-1, keepdim=True))
            y = F.silu(torch.einsum("bi,eio->beo", x, self.up))
            return torch.einsum("beo,eoi,be->bi", y, self.down, gate)

    return Network(Experts(), (torch.randn(5, 8),), ({0: "tokens"},))


@network
def lstm() -> Network:
    return Network(nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True), (batch(5, 8),), None)


@network
def gru() -> Network:
    return Network(nn.GRU(8, 6, 2), (torch.randn(5, 2, 8),), None)


@network
def lstm_cells() -> Network:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTMCell(4, 6), nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = c = torch.zeros(x.shape[0], 6)
            for step in range(3):
                h, c = self.cell(x[:, step], (h, c))
            return self.head(h)

    return Network(Cells(), (batch(3, 4),), ({0: "batch"},))


@network
def state_space() -> Network:
    class Ssm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(8, 8, 4, groups=8, padding=3)
            self.inside, self.step = nn.Linear(8, 8), nn.Linear(8, 8)
            self.decay = nn.Parameter(torch.rand(8))

        def forward(self, x: Tensor) -> Tensor:
            y = F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
            rate = F.softplus(self.step(y))
            total = torch.cumsum(-rate * self.decay, dim=1)
            return torch.exp(total) * torch.cumsum(torch.exp(-total) * self.inside(y), dim=1)

    return Network(Ssm(), (batch(6, 8),), ({0: "batch"},))


@network
def wavenet() -> Network:
    class Wave(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.ModuleList([nn.Conv1d(4, 8, 2, dilation=2**i) for i in range(3)])
            self.mix = nn.ModuleList([nn.Conv1d(4, 4, 1) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for i, (step, mix) in enumerate(zip(self.steps, self.mix, strict=True)):
                a, b = step(F.pad(x, (2**i, 0))).chunk(2, dim=1)
                x = x + mix(torch.tanh(a) * torch.sigmoid(b))
            return x

    return Network(Wave(), (batch(4, 16),), ({0: "batch"},))


@network
def speech_features() -> Network:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Conv1d(1, 8, 10, 5), nn.GroupNorm(8, 8), nn.GELU(), nn.Conv1d(8, 8, 3, 2), nn.GELU()]
            self.body = nn.Sequential(*layers)

        def forward(self, wave: Tensor) -> Tensor:
            return self.body((wave - wave.mean(-1, keepdim=True)).unsqueeze(1)).transpose(1, 2)

    return Network(Features(), (batch(100),), ({0: "batch"},))


@network
def spectrum() -> Network:
    class Spectrum(nn.Module):
        def forward(self, wave: Tensor) -> Tensor:
            return torch.fft.rfft(wave.unfold(-1, 16, 8) * torch.hann_window(16), dim=-1).abs().log1p()

    return Network(Spectrum(), (batch(64),), ({0: "batch"},))


@network
def text_cnn() -> Network:
    class TextCnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(32, 8)
            self.convs = nn.ModuleList([nn.Conv1d(8, 4, size) for size in (2, 3)])
            self.head = nn.Linear(8, 3)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids).transpose(1, 2)
            return self.head(torch.cat([F.relu(conv(x)).max(dim=-1).values for conv in self.convs], dim=-1))

    return Network(TextCnn(), (torch.randint(0, 32, (2, 7)),), ({0: "batch"},))


@network
def graph_convolution() -> Network:
    class Gcn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            for layer in (self.first, self.second):
                sent = layer(x)[edges[0]]
                total = torch.zeros(x.shape[0], sent.shape[-1]).index_add(0, edges[1], sent)
                count = torch.zeros(x.shape[0]).scatter_add(0, edges[1], torch.ones(edges.shape[1]))
                x = F.elu(total / count.clamp(min=1)[:, None])
            return x

    return Network(Gcn(), (torch.randn(5, 8), torch.randint(0, 5, (2, 9))), ({}, {1: "edges"}))


@network
def generator() -> Network:
    layers = [nn.ConvTranspose2d(8, 8, 4, 1), nn.BatchNorm2d(8), nn.LeakyReLU(0.2), nn.ConvTranspose2d(8, 3, 4, 2, 1)]
    return Network(nn.Sequential(*layers, nn.Tanh()), (batch(8, 1, 1),), ({0: "batch"},))


@network
def super_resolution() -> Network:
    layers = [nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"), nn.PReLU(8), nn.Conv2d(8, 12, 3, padding=1)]
    return Network(nn.Sequential(*layers, nn.PixelShuffle(2)), (batch(3, 8, 8),), ({0: "batch"},))


@network
def diffusion_block() -> Network:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Linear(8, 16)
            self.norm, self.conv = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            speeds = torch.exp(-math.log(10000.0) * torch.arange(4) / 4)
            angles = t[:, None].float() * speeds
            scale, shift = self.time(torch.cat((angles.sin(), angles.cos()), dim=-1)).chunk(2, dim=-1)
            y = self.norm(x) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
            return x + self.conv(F.silu(y))

    return Network(Block(), (batch(8, 8, 8), torch.tensor([3, 7])), ({0: "batch"}, {0: "batch"}), {"group_norm": 1})


@network
def radiance_field() -> Network:
    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(18, 16), nn.ReLU(), nn.Linear(16, 4))

        def forward(self, points: Tensor) -> Tensor:
            scaled = points[..., None] * 2.0 ** torch.arange(3)
            found = self.body(torch.cat((scaled.sin(), scaled.cos()), dim=-1).flatten(-2))
            opaque = 1 - torch.exp(-F.relu(found[..., 3]))
            clear = torch.cumprod(1 - opaque + 1e-6, dim=-1)
            return (found[..., :3].sigmoid() * (opaque * clear)[..., None]).sum(dim=-2)

    return Network(Field(), (batch(6, 3),), ({0: "rays"},), {"linear": 2})


@network
def quantised_autoencoder() -> Network:
    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.codes = nn.Parameter(torch.randn(12, 4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            nearest = torch.cdist(x, self.codes[None].expand(x.shape[0], -1, -1)).argmin(dim=-1)
            return F.embedding(nearest, self.codes), nearest

    return Network(Codes(), (batch(5, 4),), ({0: "batch"},))


@network
def spatial_transformer() -> Network:
    class Warp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.angle = nn.Linear(3 * 64, 6)

        def forward(self, x: Tensor) -> Tensor:
            turn = self.angle(x.flatten(1)).view(-1, 2, 3)
            return F.grid_sample(x, F.affine_grid(turn, list(x.shape), align_corners=False), align_corners=False)

    return Network(Warp(), (batch(3, 8, 8),))


@network
def contrastive() -> Network:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(8, 4), nn.Linear(6, 4)
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
            x, y = F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1)
            scores = self.scale.exp() * x @ y.t()
            target = torch.arange(scores.shape[0])
            return {"loss": F.cross_entropy(scores, target), "scores": scores}

    return Network(Pair(), (batch(8), batch(6)), ({0: "batch"}, {0: "batch"}))
