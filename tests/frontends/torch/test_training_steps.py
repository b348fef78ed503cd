"""torch.compile with our backend where functions write: to arguments, gradients, weights; and what they give back."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dovetail
from dovetail.errors import UnsupportedError
from dovetail.torch import reports
from tests.torch_networks.judge import assert_as_near_as_eager, wide

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional
dynamo: Any = pytest.importorskip("torch._dynamo")
checkpoint: Any = pytest.importorskip("torch.utils.checkpoint")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    dynamo.reset()
    torch.manual_seed(0)
    yield
    dynamo.reset()


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=dovetail.torch.backend, **options)


def nothing(x: Any, y: Any) -> None:
    x.copy_(y)


def filled(x: Any, y: Any) -> None:
    x.fill_(2.0)


def added(x: Any, y: Any) -> Any:
    return x.add_(y)


def both(x: Any, y: Any) -> None:
    x.add_(1)
    y.mul_(x)


def swapped(x: Any, y: Any) -> None:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def part(x: Any, y: Any) -> None:
    x[0].add_(y[1])


def part_and_whole(x: Any, y: Any) -> Any:
    x[1:].mul_(y[1:])
    return x * 2, x[0], x.t()


def turned(x: Any, y: Any) -> None:
    x.t().copy_(y.t() + 1)


def input_itself(x: Any, y: Any) -> Any:
    return x, y + 1


def view(x: Any, y: Any) -> Any:
    return x.view(-1), y.sum()


def out(x: Any, y: Any) -> None:
    torch.mul(x, y, out=y)


def zeroed(x: Any, y: Any) -> None:
    x.zero_()
    y.copy_(x)


def written_and_read(x: Any, y: Any) -> Any:
    z = x.exp()
    x.copy_(z)
    return z, x + y


def masked(x: Any, y: Any) -> None:
    x.masked_fill_(y > 0, 0.0)


def same_twice(x: Any, y: Any) -> Any:
    x.add_(y)
    return x, x


WRITING = (
    nothing, filled, added, both, swapped, part, part_and_whole, turned, input_itself, view, out, zeroed,
    written_and_read, masked, same_twice,
)  # fmt: skip


@pytest.mark.parametrize("function", WRITING, ids=lambda f: f.__name__)
def test_functions_that_write_to_their_arguments_do_what_eager_does(function: Callable[[Any, Any], Any]) -> None:
    run = compiled(function)
    for step in range(2):
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        ours, eager = (x.clone(), y.clone()), (x.clone(), y.clone())
        found, expected = run(*ours), function(*eager)
        for got, wanted in zip(ours, eager, strict=True):
            torch.testing.assert_close(got, wanted)
        assert (found is None) == (expected is None), step
        listed = [(found, expected)] if torch.is_tensor(expected) else [*zip(found or (), expected or (), strict=True)]
        for got, wanted in listed:
            torch.testing.assert_close(got, wanted)
            shared = [wanted.untyped_storage().data_ptr() == a.untyped_storage().data_ptr() for a in eager]
            assert shared == [got.untyped_storage().data_ptr() == a.untyped_storage().data_ptr() for a in ours]


def steps(function: Callable[[Any, Any, Any, Any], Any], make: Callable[[Any], Any]) -> None:
    """Judge three steps by their weights, with the model in float32 by us, in eager, and in float64."""
    ours = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    models = [ours, copy.deepcopy(ours), copy.deepcopy(ours).double()]
    optimizers = [make(model.parameters()) for model in models]
    runs = [compiled(function), function, function]
    batches = [(torch.randn(6, 8), torch.randn(6, 4)) for _ in range(3)]
    made: list[Any] = []
    for run, model, optimizer in zip(runs, models, optimizers, strict=True):
        losses = [run(model, optimizer, *(wide(batch) if model is models[2] else batch)) for batch in batches]
        made.append([[loss.detach() for loss in losses], [p.detach() for p in model.parameters()]])
    assert_as_near_as_eager(*made)


def test_whole_steps_are_compiled() -> None:
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    steps(step, lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9))


def test_optimizers_are_compiled() -> None:
    model = nn.Linear(8, 4)
    eager = copy.deepcopy(model)
    for make in (
        lambda weights: torch.optim.SGD(weights, 0.1),
        lambda weights: torch.optim.AdamW(weights, 0.1),
    ):
        dynamo.reset()
        ours, theirs = make(model.parameters()), make(eager.parameters())
        step = compiled(ours.step)
        for _ in range(2):
            x = torch.randn(2, 8)
            for one, optimizer, run in ((model, ours, step), (eager, theirs, theirs.step)):
                optimizer.zero_grad()
                one(x).square().mean().backward()
                run()
        for got, wanted in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(got, wanted)


def test_checkpoints_with_dropout_end_and_draw_what_eager_draws() -> None:
    block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))

    def run(x: Any) -> Any:
        return checkpoint.checkpoint(block, checkpoint.checkpoint(block, x, use_reentrant=False), use_reentrant=False)

    made: list[Any] = []
    for function in (compiled(run), run):
        torch.manual_seed(3)
        block.zero_grad()
        x = torch.ones(4, 8, requires_grad=True)
        y = function(x)
        y.square().sum().backward()
        made.append([y.detach(), x.grad, *(p.grad.clone() for p in block.parameters())])
    for got, wanted in zip(*made, strict=True):
        torch.testing.assert_close(got, wanted)


CONVOLUTIONS = {
    "1d": lambda: (nn.Conv1d(3, 5, 3, padding=1), (2, 3, 9)),
    "strided with a rest": lambda: (nn.Conv2d(3, 4, 3, stride=2), (2, 3, 8, 9)),
    "dilated": lambda: (nn.Conv2d(2, 4, 3, dilation=2, padding=(2, 1), bias=False), (2, 2, 9, 8)),
    "groups": lambda: (nn.Conv2d(6, 4, (3, 2), groups=2, padding=1, stride=(1, 2)), (2, 6, 7, 7)),
    "depthwise": lambda: (nn.Conv2d(4, 8, 3, groups=4, stride=2, padding=1), (1, 4, 8, 8)),
    "patches": lambda: (nn.Conv2d(3, 8, 4, stride=4), (2, 3, 8, 8)),
    "one pixel": lambda: (nn.Conv2d(3, 8, 1), (2, 3, 4, 4)),
    "3d": lambda: (nn.Conv3d(2, 3, 2, stride=2), (1, 2, 4, 5, 4)),
    "no batch": lambda: (nn.Conv2d(3, 4, 3), (3, 6, 6)),
    "transposed": lambda: (nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), (2, 3, 5, 5)),
    "transposed groups": lambda: (nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2), (2, 4, 5, 4)),
    "transposed 1d": lambda: (nn.ConvTranspose1d(4, 2, 4, stride=3, output_padding=2), (2, 4, 5)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_convolutions_are_ours(name: str) -> None:
    ours, shape = CONVOLUTIONS[name]()
    models = [ours, copy.deepcopy(ours), copy.deepcopy(ours).double()]
    image = torch.randn(shape)
    made: list[Any] = []
    before = len(reports())
    for model in models:
        run = compiled(model) if model is ours else model
        x = (image.double() if model is models[2] else image.clone()).requires_grad_()
        y = run(x)
        (y * y).sum().backward()
        made.append([y.detach(), x.grad, *(p.grad for p in model.parameters())])
    assert_as_near_as_eager(*made)
    assert not any(report.fallbacks for report in reports()[before:])


def test_gradients_of_convolutions_that_nobody_asks_for_are_left_out() -> None:
    frozen = nn.Conv2d(3, 4, 3).requires_grad_(False)
    frozen.bias.requires_grad_(True)
    x = torch.randn(2, 3, 6, 6)
    compiled(frozen, options={"fallback": "error"})(x).sum().backward()
    torch.testing.assert_close(frozen.bias.grad, torch.full((4,), 32.0))
    assert frozen.weight.grad is None


def test_a_batch_of_any_size_has_one_backward_graph() -> None:
    model = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    exact = copy.deepcopy(model).double()
    run = compiled(model, dynamic=True, options={"fallback": "error"})
    for rows in (2, 3):
        x = torch.randn(rows, 3, 8, 8)
        for one, given in ((run, x), (exact, x.double())):
            one(given).square().sum().backward()
    for got, wanted in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(got.grad.double(), wanted.grad, rtol=1e-4, atol=1e-4)


def test_what_torch_would_run_in_a_backward_graph_is_refused_with_its_place() -> None:
    def sorted_rows(x: Any) -> Any:
        return torch.segment_reduce(x, "sum", lengths=torch.tensor([2, 2]), unsafe=True)

    with pytest.raises(UnsupportedError, match="segment_reduce"):
        compiled(sorted_rows, options={"fallback": "error"})(torch.randn(4, requires_grad=True))
