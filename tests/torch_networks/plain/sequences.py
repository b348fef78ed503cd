"""Recurrent networks, state spaces, sound and text by convolutions."""

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


@network("sequence")
def lstm() -> Network:
    return Network(nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True), (batch(5, 8),), None)


@network("sequence")
def gru() -> Network:
    return Network(nn.GRU(8, 6, 2), (torch.randn(5, 2, 8),), None)


@network("sequence")
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


@network("sequence")
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


@network("sequence")
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


@network("sequence")
def speech_features() -> Network:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Conv1d(1, 8, 10, 5), nn.GroupNorm(8, 8), nn.GELU(), nn.Conv1d(8, 8, 3, 2), nn.GELU()]
            self.body = nn.Sequential(*layers)

        def forward(self, wave: Tensor) -> Tensor:
            return self.body((wave - wave.mean(-1, keepdim=True)).unsqueeze(1)).transpose(1, 2)

    return Network(Features(), (batch(100),), ({0: "batch"},))


@network("sequence")
def spectrum() -> Network:
    class Spectrum(nn.Module):
        def forward(self, wave: Tensor) -> Tensor:
            return torch.fft.rfft(wave.unfold(-1, 16, 8) * torch.hann_window(16), dim=-1).abs().log1p()

    return Network(Spectrum(), (batch(64),), ({0: "batch"},))


@network("sequence")
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


CASES = collected(globals())
