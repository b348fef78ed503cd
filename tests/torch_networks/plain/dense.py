"""Networks of linear layers: perceptrons, embeddings, experts, graphs, points in space."""

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


@network("dense")
def mlp() -> Network:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    return Network(module, (batch(8),), ({0: "batch"},), {"linear": 2})


@network("dense")
def residual_mlp() -> Network:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(F.silu(self.up(self.norm(x))))

    return Network(nn.Sequential(Block(), Block()), (batch(5, 8),), ({0: "batch", 1: "length"},), {"linear": 2})


@network("dense")
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


@network("dense")
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


@network("dense")
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


@network("dense")
def quantised_autoencoder() -> Network:
    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.codes = nn.Parameter(torch.randn(12, 4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            nearest = torch.cdist(x, self.codes[None].expand(x.shape[0], -1, -1)).argmin(dim=-1)
            return F.embedding(nearest, self.codes), nearest

    return Network(Codes(), (batch(5, 4),), ({0: "batch"},))


@network("dense")
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


CASES = collected(globals())
