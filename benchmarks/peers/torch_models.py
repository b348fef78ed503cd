# pyright: basic
"""The workloads as people write them in torch, with the weights of the ONNX models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

from dovetail.bench.convnets import GROUPS, Resnet, UnetBlock
from dovetail.bench.transformers import Decoder, Encoder
from dovetail.bench.workloads import Shape
from dovetail.ir.literal import Array

Weights = Mapping[str, Array]


def module(shape: Shape, weights: Weights) -> nn.Module:
    """The network of these sizes; it takes the inputs of the ONNX model in their order."""
    match shape:
        case Encoder():
            made: nn.Module = _Encoder(shape, weights)
        case Decoder():
            made = _Decoder(shape, weights)
        case Resnet():
            made = _channels_last(_Resnet(shape, weights))
        case UnetBlock():
            made = _channels_last(_UnetBlock(weights))
    return made.eval().requires_grad_(False)


def _channels_last(network: Any) -> Any:
    return network.to(memory_format=torch.channels_last)


def _tensor(array: Array) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(array), requires_grad=False)


def _linear(weights: Weights, *names: str) -> nn.Linear:
    """A linear layer, or several of the same input as one; ONNX has the columns where torch has the rows."""
    parts = [torch.from_numpy(weights[f"{name}.weight"]).T for name in names]
    joined = torch.cat(parts).contiguous()
    made = nn.Linear(joined.shape[1], joined.shape[0], bias=f"{names[0]}.bias" in weights, device="meta")
    made.weight = nn.Parameter(joined, requires_grad=False)
    if made.bias is not None:
        made.bias = nn.Parameter(
            torch.cat([torch.from_numpy(weights[f"{n}.bias"]) for n in names]), requires_grad=False
        )
    return made


class _Norm(nn.Module):
    def __init__(self, weights: Weights, name: str) -> None:
        super().__init__()
        self.weight, self.bias = _tensor(weights[f"{name}.weight"]), _tensor(weights[f"{name}.bias"])

    def forward(self, x: Any) -> Any:
        return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, 1e-12)


class _EncoderLayer(nn.Module):
    def __init__(self, of: Encoder, weights: Weights, at: str) -> None:
        super().__init__()
        self.heads = of.heads
        self.joined = _linear(weights, f"{at}.query", f"{at}.key", f"{at}.value")
        self.dense, self.up, self.down = (_linear(weights, f"{at}.{name}") for name in ("dense", "up", "down"))
        self.norm1, self.norm2 = _Norm(weights, f"{at}.norm1"), _Norm(weights, f"{at}.norm2")

    def forward(self, x: Any, mask: Any) -> Any:
        batch, seq, hidden = x.shape
        q, k, v = self.joined(x).view(batch, seq, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(self.dense(mixed.transpose(1, 2).reshape(batch, seq, hidden)) + x)
        return self.norm2(self.down(F.gelu(self.up(x))) + x)


class _Encoder(nn.Module):
    def __init__(self, of: Encoder, weights: Weights) -> None:
        super().__init__()
        self.words, self.places = _tensor(weights["words"]), _tensor(weights["places"])
        self.norm = _Norm(weights, "norm")
        self.layers = nn.ModuleList(_EncoderLayer(of, weights, f"layers.{i}") for i in range(of.layers))

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.norm(F.embedding(input_ids, self.words) + self.places[: input_ids.shape[1]])
        mask = attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, mask)
        return x


class _Rms(nn.Module):
    def __init__(self, weights: Weights, name: str) -> None:
        super().__init__()
        self.weight = _tensor(weights[f"{name}.weight"])

    def forward(self, x: Any) -> Any:
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class _DecoderLayer(nn.Module):
    def __init__(self, of: Decoder, weights: Weights, at: str) -> None:
        super().__init__()
        self.of = of
        self.joined = _linear(weights, f"{at}.query", f"{at}.key", f"{at}.value")
        self.gate_up = _linear(weights, f"{at}.gate", f"{at}.up")
        self.dense, self.down = _linear(weights, f"{at}.dense"), _linear(weights, f"{at}.down")
        self.norm1, self.norm2 = _Rms(weights, f"{at}.norm1"), _Rms(weights, f"{at}.norm2")

    def forward(self, x: Any, turn: tuple[Any, Any], past: tuple[Any, ...]) -> Any:
        of = self.of
        batch, seq, _ = x.shape
        heads = self.joined(self.norm1(x)).view(batch, seq, -1, of.size).transpose(1, 2)
        q, k, v = heads.split((of.heads, of.groups, of.groups), dim=1)
        q, k = _turned(q, *turn), _turned(k, *turn)
        if past:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=seq > 1, enable_gqa=True)
        x = x + self.dense(mixed.transpose(1, 2).reshape(batch, seq, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class _Decoder(nn.Module):
    def __init__(self, of: Decoder, weights: Weights) -> None:
        super().__init__()
        self.of = of
        self.words = _tensor(weights["words"])
        self.layers = nn.ModuleList(_DecoderLayer(of, weights, f"layers.{i}") for i in range(of.layers))
        self.norm, self.head = _Rms(weights, "norm"), _linear(weights, "head")
        angles = torch.outer(torch.arange(4096.0), 10000.0 ** (-torch.arange(0, of.size, 2) / of.size))
        doubled = torch.cat((angles, angles), dim=-1)
        self.cos, self.sin = (nn.Parameter(part, requires_grad=False) for part in (doubled.cos(), doubled.sin()))

    def forward(self, input_ids: Any, *past: Any) -> Any:
        x = F.embedding(input_ids, self.words)
        cached = past[0].shape[2] if past else 0
        turn = tuple(part[cached : cached + input_ids.shape[1]] for part in (self.cos, self.sin))
        for i, layer in enumerate(self.layers):
            x = layer(x, turn, past[2 * i : 2 * i + 2])
        return self.head(self.norm(x))


class _Conv(nn.Module):
    def __init__(self, weights: Weights, name: str, stride: int = 1) -> None:
        super().__init__()
        self.weight, self.bias = _tensor(weights[f"{name}.weight"]), _tensor(weights[f"{name}.bias"])
        self.stride, self.padding = stride, self.weight.shape[-1] // 2

    def forward(self, x: Any) -> Any:
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)


class _Bottleneck(nn.Module):
    def __init__(self, weights: Weights, at: str, stride: int) -> None:
        super().__init__()
        self.conv1, self.conv3 = _Conv(weights, f"{at}.conv1"), _Conv(weights, f"{at}.conv3")
        self.conv2 = _Conv(weights, f"{at}.conv2", stride)
        self.short = _Conv(weights, f"{at}.short", stride) if f"{at}.short.weight" in weights else nn.Identity()

    def forward(self, x: Any) -> Any:
        y = F.relu(self.conv1(x))
        y = F.relu(self.conv2(y))
        return F.relu(self.conv3(y) + self.short(x))


class _Resnet(nn.Module):
    def __init__(self, of: Resnet, weights: Weights) -> None:
        super().__init__()
        self.stem = _Conv(weights, "stem", 2)
        self.blocks = nn.Sequential(
            *(
                _Bottleneck(weights, f"stages.{stage}.{block}", 2 if stage and not block else 1)
                for stage, blocks in enumerate(of.blocks)
                for block in range(blocks)
            )
        )
        self.head = _linear(weights, "head")

    def forward(self, image: Any) -> Any:
        x = F.relu(self.stem(image.contiguous(memory_format=torch.channels_last)))
        x = self.blocks(F.max_pool2d(x, 3, 2, 1))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class _UnetBlock(nn.Module):
    def __init__(self, weights: Weights) -> None:
        super().__init__()
        names = [f"blocks.{block}.{layer}" for block in range(2) for layer in range(2)]
        self.convs = nn.ModuleList(_Conv(weights, f"{name}.conv") for name in names)
        self.gains = nn.ParameterList(_tensor(weights[f"{name}.norm.weight"]) for name in names)
        self.shifts = nn.ParameterList(_tensor(weights[f"{name}.norm.bias"]) for name in names)

    def forward(self, x: Any) -> Any:
        x = x.contiguous(memory_format=torch.channels_last)
        for block in (0, 2):
            y = x
            for i in (block, block + 1):
                y = self.convs[i](F.silu(F.group_norm(y, GROUPS, self.gains[i], self.shifts[i], 1e-5)))
            x = x + y
        return x.contiguous()
