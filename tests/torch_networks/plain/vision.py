"""Networks of convolutions that classify images."""

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


@network("vision")
def resnet() -> Network:
    stem = [conv_norm(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1)]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    module = nn.Sequential(*stem, Bottleneck(8), Bottleneck(8, 2), *tail)
    return Network(module, (batch(3, 32, 32),), ({0: "batch"},), {"conv_batch_norm": 6})


@network("vision")
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


@network("vision")
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


@network("vision")
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


@network("vision")
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


CASES = collected(globals())
