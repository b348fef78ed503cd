"""Custom operators: a body is the rule, the fusion and the gradient; without one the error says how to give it."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dovetail
import dovetail.torch
from dovetail import Value, fused_op, ops
from dovetail.errors import OptionError, UnsupportedError
from dovetail.frontends.torch.load import import_module
from dovetail.torch import reports

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.linspace(-1, 2, 512).reshape(8, 64)


@fused_op(shapes="x[*, m, n] w[n] floor=1e-6")
def unit_rows(x: Value, w: Value, *, floor: float) -> Value:
    """Rows of length 1, weighed."""
    return x * ops.rsqrt(ops.reduce_sum(x * x, axes=(-1,)) + floor) * w


def rows_by_torch(x: Any, w: Any, floor: float = 1e-6) -> Any:
    return x / (x.square().sum(-1, keepdim=True) + floor).sqrt() * w


@pytest.fixture(scope="module")
def operator() -> Iterator[Any]:
    library = torch.library.Library("dovetail_tests", "DEF")
    library.define("unit_rows(Tensor x, Tensor w, float floor=1e-6) -> Tensor")
    library.define("halves(Tensor x) -> (Tensor, Tensor)")
    library.impl("unit_rows", rows_by_torch, "CompositeExplicitAutograd")
    library.impl("halves", lambda x: (x * 0.5, x * 1.5), "CompositeExplicitAutograd")
    yield library


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(64))

    def forward(self, x: Any) -> Any:
        y = torch.ops.dovetail_tests.unit_rows(x, self.w, 0.5)
        return y, *torch.ops.dovetail_tests.halves(y)


def halves(x: Value) -> tuple[Value, Value]:
    return x * 0.5, x * 1.5


def test_body_is_the_rule_the_fusion_and_the_gradient(operator: Any) -> None:
    torch.manual_seed(0)
    module, x = Module().eval(), X
    bodies = {"dovetail_tests::unit_rows": unit_rows, "dovetail_tests::halves": halves}
    program = dovetail.compile(module, args=(x,), dynamic=({0: "rows"},), custom_ops=bodies)
    assert program.report.count("unit_rows") == 1
    for given in (x, torch.randn(5, 64)):
        with torch.no_grad():
            wanted = module(given)
        for found, y in zip(program(given), wanted, strict=True):
            assert torch.allclose(found, y, atol=1e-6)


def test_gradient_of_a_body(operator: Any) -> None:
    class Loss(Module):
        def forward(self, x: Any) -> Any:
            return torch.ops.dovetail_tests.unit_rows(x, self.w, 0.5).sum()

    torch.manual_seed(0)
    module, x = Loss().eval(), X
    graph = import_module(module, (x,), custom_ops={"dovetail_tests::unit_rows": unit_rows}).graph
    found = dovetail.compile(dovetail.graphs.value_and_grad(graph, "w"), ops=[unit_rows]).run({"x": x.numpy()})
    rows_by_torch(x, module.w, 0.5).sum().backward()
    assert np.allclose(found["d.w"], module.w.grad.numpy(), atol=1e-5)


def test_operator_without_a_body_says_how_to_give_it_one(operator: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"dovetail_tests\.halves\.default") as error:
        dovetail.compile(Module().eval(), args=(X,), custom_ops={"dovetail_tests::unit_rows": unit_rows})
    assert '"dovetail_tests::halves": body' in str(error.value)


def test_body_that_does_not_take_the_arguments_is_refused(operator: Any) -> None:
    bodies = {"dovetail_tests::unit_rows": lambda x: x, "dovetail_tests::halves": halves}
    with pytest.raises(OptionError, match="does not take what the operator is called with"):
        dovetail.compile(Module().eval(), args=(X,), custom_ops=bodies)
    with pytest.raises(OptionError, match="namespace::operator"):
        dovetail.compile(Module().eval(), args=(X,), custom_ops={"unit_rows": unit_rows})
    with pytest.raises(OptionError, match="without a torch module"):
        compiled: Any = dovetail.compile
        compiled("model.onnx", custom_ops={"a::b": halves})


def test_body_serves_torch_compile(operator: Any) -> None:
    torch.manual_seed(0)
    bodies = {"dovetail_tests::unit_rows": unit_rows, "dovetail_tests::halves": halves}
    options = {"custom_ops": bodies, "fallback": "error"}
    module = Module().eval()
    run = torch.compile(module, backend=dovetail.torch.backend, options=options)
    with torch.no_grad():
        for found, wanted in zip(run(X), module(X), strict=True):
            assert torch.allclose(found, wanted, atol=1e-6)
    assert reports()[-1].regions[0].count("unit_rows") == 1
    assert reports()[-1].fallbacks == ()
