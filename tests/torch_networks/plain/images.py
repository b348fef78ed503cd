"""Networks that give images, or something for each pixel."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.torch_networks.network import Network, collected, network
from tests.torch_networks.plain.layers import batch

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional
Tensor = Any


@network("images")
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


@network("images")
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


@network("images")
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


@network("images")
def generator() -> Network:
    layers = [nn.ConvTranspose2d(8, 8, 4, 1), nn.BatchNorm2d(8), nn.LeakyReLU(0.2), nn.ConvTranspose2d(8, 3, 4, 2, 1)]
    return Network(nn.Sequential(*layers, nn.Tanh()), (batch(8, 1, 1),), ({0: "batch"},))


@network("images")
def super_resolution() -> Network:
    layers = [nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"), nn.PReLU(8), nn.Conv2d(8, 12, 3, padding=1)]
    return Network(nn.Sequential(*layers, nn.PixelShuffle(2)), (batch(3, 8, 8),), ({0: "batch"},))


@network("images")
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


@network("images")
def spatial_transformer() -> Network:
    class Warp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.angle = nn.Linear(3 * 64, 6)

        def forward(self, x: Tensor) -> Tensor:
            turn = self.angle(x.flatten(1)).view(-1, 2, 3)
            return F.grid_sample(x, F.affine_grid(turn, list(x.shape), align_corners=False), align_corners=False)

    return Network(Warp(), (batch(3, 8, 8),))


CASES = collected(globals())
