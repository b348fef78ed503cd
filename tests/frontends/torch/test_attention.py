"""Attention as modules write it: scaled queries are scaled once, a mask of any form is one kernel with the rest."""

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
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


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


class Masked(nn.Module):
    """Attention under a mask of keys that is stretched over heads and queries, as transformers writes it."""

    def __init__(self, added: bool) -> None:
        super().__init__()
        self.added = added

    def forward(self, q: Any, k: Any, v: Any, keep: Any) -> Any:
        mask = (keep != 0)[:, None, None, :].expand(q.shape[0], 1, q.shape[2], k.shape[2])
        if self.added:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def masked(batch: int) -> tuple[Any, ...]:
    """Arguments whose first mask hides every key, and whose others hide some."""
    torch.manual_seed(0)
    keep = torch.ones(batch, 6, dtype=torch.int64)
    keep[:, -2:] = 0
    keep[0] = 0
    return *(torch.randn(batch, 2, 6, 8) for _ in range(3)), keep


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("added", [False, True])
def test_a_query_that_sees_no_key_gets_zero(added: bool, batch: int) -> None:
    module, arguments = Masked(added), masked(batch)
    program: Any = dovetail.compile(module, args=arguments, threads=1)
    found = program(*arguments)
    assert (found[0] == 0).all()
    torch.testing.assert_close(found, module(*arguments))
    seen = (*arguments[:3], torch.ones_like(arguments[3]))
    torch.testing.assert_close(program(*seen), module(*seen))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_mask_of_keys_leaves_the_attention_one_kernel(batch: int) -> None:
    program: Any = dovetail.compile(Masked(False), args=masked(batch), threads=1)
    assert sorted(s.name.rsplit("_", 1)[0] for s in program.plan.steps) == ["attention", "not_equal"]


class SeesAll(nn.Module):
    """A mask that is computed from positions, and hides nothing."""

    def forward(self, x: Any) -> Any:
        keep = (torch.arange(x.shape[-2]) >= 0)[None, None, :, None].expand(1, 1, x.shape[-2], x.shape[-2])
        return F.scaled_dot_product_attention(x, x, x, attn_mask=keep)


def test_a_mask_that_hides_nothing_costs_nothing() -> None:
    x = torch.randn(1, 2, 200, 8)  # the mask is too large to be folded
    program: Any = dovetail.compile(SeesAll(), args=(x,), threads=1)
    assert [s.name.rsplit("_", 1)[0] for s in program.plan.steps] == ["attention"]
    torch.testing.assert_close(program(x), SeesAll()(x))
