"""Calls of ten sizes through torch.compile: as exact as eager, and no graph that torch's own backend does not need."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

import dovetail.torch
from dovetail.torch.compiled import live
from tests.torch_networks.every import full_name, named
from tests.torch_networks.judge import assert_as_near_as_eager, built
from tests.torch_networks.through_compile import Compiled, compared

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
dynamo: Any = pytest.importorskip("torch._dynamo")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> Iterator[None]:
    dynamo.reset()
    yield
    dynamo.reset()


@pytest.mark.parametrize("name", ["torch/growing_cache_step", "torch/feature_pyramid", "torch/windowed_attention"])
def test_ten_sizes_take_two_graphs(name: str) -> None:
    """One for the sizes of the first call, one for all others: the least that dynamo makes."""
    case = named(name)
    row = compared(built(case), Compiled(full_name(case), case.kind, "absent"))
    assert (row.verdict, row.detail, row.calls, row.graphs) == ("right", "", 10, 2)
    assert not row.fallbacks


def resized(x: Any) -> Any:
    return torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear", antialias=True)


def test_fallbacks_are_those_of_the_graphs_that_a_network_takes() -> None:
    """Not of graphs that other calls left alive."""
    other = torch.compile(resized, backend=dovetail.torch.backend)
    other(torch.randn(1, 1, 4, 4))
    assert any(graph.report().fallbacks for graph in live()), "torch resizes images with antialiasing"
    row = compared(built(named("torch/windowed_attention")), Compiled("windowed", "attention", "absent"))
    assert row.graphs == 2 and not row.fallbacks


def test_training_at_ten_sizes_takes_no_more_graphs_than_torch_needs() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv1d(3, 4, 3), nn.LayerNorm(4), nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(self.conv(x).relu().mean(dim=2)))

    module = Pooled()
    before = set(live())
    counts: list[int] = []
    for backend in ("aot_eager", dovetail.torch.backend):
        dynamo.reset()
        dynamo.utils.counters.clear()
        run = torch.compile(module, backend=backend)
        for size in range(2, 12):
            x = torch.randn(size, 3, size + 5)
            made: list[Any] = []
            for call, owner, given in _calls(run, module, x):
                y = call(given)
                made.append([y.detach(), torch.autograd.grad((y * y).mean(), list(owner.parameters()))])
            assert_as_near_as_eager(*made)
        counts.append(dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[1] <= counts[0]
    assert [graph.kind for graph in live() if graph not in before] == ["forward", "backward"] * counts[1]


def _calls(run: Any, module: Any, x: Any) -> list[tuple[Any, Any, Any]]:
    eager, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    return [(run, module, x), (eager, eager, x), (exact, exact, x.double())]
