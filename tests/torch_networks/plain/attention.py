"""Transformers in plain torch."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import pytest

from tests.torch_networks.network import Network, collected, network
from tests.torch_networks.plain.layers import Attention, Layer, batch

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional
Tensor = Any


@network("attention")
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


@network("attention")
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


@network("attention")
def grouped_query_attention() -> Network:
    return Network(Layer(kv_heads=2), (batch(6, 16),), ({0: "batch", 1: "length"},), {"attention": 1})


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


@network("attention")
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


@network("attention")
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


@network("attention")
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


@network("attention")
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


@network("attention")
def transformer_of_torch() -> Network:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return Network(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (batch(5, 16),), {"src": {0: "batch"}})


@network("attention")
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


@network("attention")
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


@network("attention")
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


CASES = collected(globals())
