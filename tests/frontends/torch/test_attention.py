"""Attention whose queries are scaled before it: right, and its layers are joined as where the attention scales."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import copy
from typing import Any

import pytest

import dovetail

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")


class Attention(nn.Module):
    def __init__(self, factor: Any, scale: float | None) -> None:
        super().__init__()
        self.factor, self.scale = factor, scale
        self.q, self.k, self.v = (nn.Linear(128, 128) for _ in range(3))

    def forward(self, x: Any) -> Any:
        q = self.q(x) if self.factor is None else self.q(x) * self.factor
        q, k, v = (t.unflatten(-1, (4, 32)).transpose(1, 2) for t in (q, self.k(x), self.v(x)))
        return F.scaled_dot_product_attention(q, k, v, scale=self.scale)


def compiled(factor: Any, scale: float | None) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    module, x = Attention(factor, scale).eval().requires_grad_(False), torch.randn(2, 96, 128)
    return module, x, dovetail.compile(module, args=(x,), threads=1)


@pytest.mark.parametrize("scale", [1.0, 0.3, None])
@pytest.mark.parametrize("factor", [0.7, 3.0, -0.7, 0.0, 2, None])
def test_queries_that_are_scaled_are_scaled_once(factor: Any, scale: float | None) -> None:
    module, x, program = compiled(factor, scale)
    exact = copy.deepcopy(module).double()(x.double())
    allowed = 2 * (module(x).double() - exact).abs().max() + 1e-6
    assert (program(x).double() - exact).abs().max() <= allowed


def test_a_factor_of_each_head_stays_where_it_is() -> None:
    factor = torch.linspace(0.5, 2.0, 128)
    module, x, program = compiled(factor, 1.0)
    torch.testing.assert_close(program(x), module(x), rtol=1e-4, atol=1e-5)


def test_layers_are_joined_wherever_the_scale_is_written() -> None:
    steps = [
        sorted(s.name.rsplit("_", 1)[0] for s in compiled(*how)[2].plan.steps) for how in ((0.7, 1.0), (None, 0.7))
    ]
    assert steps[0] == steps[1] and steps[0].count("linear") == 1
