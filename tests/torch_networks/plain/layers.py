"""What several networks have: a batch of random numbers, attention, a layer of a transformer."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional
Tensor = Any


def batch(*shape: int) -> Any:
    return torch.randn(2, *shape)


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
