"""Mixtures of experts: torch's grouped products are one step, forward and backward."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

from typing import Any

import pytest

import dovetail
import dovetail.torch

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers.integrations.moe")
nn: Any = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")

ENDS = [3, 3, 16, 20]


class Experts(nn.Module):
    def __init__(self, turned: bool, dtype: Any) -> None:
        super().__init__()
        self.turned = turned
        self.w = nn.Parameter(torch.randn(*((4, 48, 32) if turned else (4, 32, 48)), dtype=dtype) / 6)

    def forward(self, x: Any, ends: Any) -> Any:
        w = self.w.transpose(-1, -2) if self.turned else self.w
        # Where torch has no kernel of its own, transformers has an operator.
        multiply = torch._grouped_mm if w.dtype is torch.bfloat16 else torch.ops.transformers.grouped_mm_fallback
        return multiply(x, w, offs=ends)


def made(turned: bool, dtype: Any) -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(0)
    module, x, ends = Experts(turned, dtype), torch.randn(24, 32, dtype=dtype), torch.tensor(ENDS, dtype=torch.int32)
    exact = torch.zeros(24, 48, dtype=torch.float64)
    w = (module.w.transpose(-1, -2) if turned else module.w).detach().double()
    for group, (first, end) in enumerate(zip([0, *ENDS], ENDS, strict=False)):
        exact[first:end] = x[first:end].double() @ w[group]
    return module, x, ends, exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("turned", [False, True])
def test_each_group_of_rows_meets_its_matrix(turned: bool, dtype: Any) -> None:
    module, x, ends, exact = made(turned, dtype)
    program = dovetail.compile(module.eval().requires_grad_(False), args=(x, ends), threads=1)
    bound = 1e-6 if dtype is torch.float32 else 2**-8
    # torch leaves rows after the last end as they are in memory; here they are 0.
    assert (program(x, ends).double() - exact).abs().max() <= bound * exact.abs().max()
    assert [s.name for s in program.plan.steps if s.name.startswith("grouped_matmul")] and len(program.plan.steps) == 1


def test_gradients_of_rows_and_matrices() -> None:
    module, x, ends, _ = made(False, torch.float32)
    given = x.clone().requires_grad_()
    torch.compile(module, backend=dovetail.torch.backend)(given, ends)[:20].square().sum().backward()
    w, rows = module.w.detach().double().requires_grad_(), x.double().requires_grad_()
    parts = [rows[a:b] @ w[g] for g, (a, b) in enumerate(zip([0, *ENDS], ENDS, strict=False))]
    torch.cat(parts).square().sum().backward()
    torch.testing.assert_close(module.w.grad.double(), w.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(given.grad.double()[:20], rows.grad[:20], rtol=1e-5, atol=1e-5)
