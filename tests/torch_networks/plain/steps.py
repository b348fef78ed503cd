"""One token of a decoder at a time, with keys and values that are kept."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import pytest

from tests.torch_networks.network import Network, collected, network
from tests.torch_networks.plain.layers import batch

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional
Tensor = Any


@network("step")
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


@network("step")
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


CASES = collected(globals())
