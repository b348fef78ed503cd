"""Values that a module detaches, or computes under `torch.no_grad()`, have no gradient, as in torch."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.frontends.torch.load import import_module

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")


def straight_through(x: Any, w: Any) -> Any:
    """Rounded in the forward pass, as it is in the backward pass."""
    y = x * w
    return y + (torch.round(y) - y).detach()


def detached_weight(x: Any, w: Any) -> Any:
    return (x * w).exp() * w.detach() + w


def under_no_grad(x: Any, w: Any) -> Any:
    """Two results of one region; what `enable_grad` computes within it has a gradient."""
    y = x * w
    with torch.no_grad():
        total = (y * y).sum(-1, keepdim=True)
        with torch.enable_grad():
            raised = y.exp()
        largest = total.amax()
    return y * largest / (1 + total) + raised


@torch.no_grad()
def _frozen(x: Any, w: Any) -> Any:
    return (x * w).sin()


def decorated(x: Any, w: Any) -> Any:
    """A whole function is a region."""
    return _frozen(x, w) * w


def unused_region(x: Any, w: Any) -> Any:
    with torch.no_grad():
        x.sum()
    return x * w


@pytest.mark.parametrize("body", [straight_through, detached_weight, under_no_grad, decorated, unused_region])
def test_gradient(body: Callable[[Any, Any], Any]) -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.linspace(0.3, 1.9, 8))

        def forward(self, x: Any) -> Any:
            return (body(x, self.w) ** 2).sum()

    module, x = Module().eval(), torch.linspace(-2, 3, 32).reshape(4, 8)
    graph = import_module(module, (x,)).graph
    program = dovetail.compile(dovetail.graphs.value_and_grad(graph, "w"))
    assert "stop_gradient" not in [step.value.op.name for step in program.plan.steps]
    found = program.run({"x": x.numpy()})
    module(x).backward()
    assert np.allclose(found["d.w"], module.w.grad.numpy(), rtol=1e-4)
