"""Calls through torch.compile that come again: whatever changes between two of them, they give what eager does."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dovetail.torch
from dovetail.errors import DovetailError
from dovetail.torch.compiled import live
from dovetail.torch.region_call import FIRST_RUNS, MOST_REPEATS, RegionCall
from dovetail.torch.staying import Stay, can_stay, is_compiled

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
dynamo: Any = pytest.importorskip("torch._dynamo")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not can_stay(), reason="this torch tells compiled code no addresses"),
]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    dynamo.reset()


def network() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 4)).eval()


def repeating(module: Any, *args: Any) -> tuple[Any, RegionCall]:
    """A compiled module that has been called until its weights are no longer looked at one by one."""
    compiled = torch.compile(module, backend=dovetail.torch.backend)
    while not is_compiled():
        time.sleep(0.001)
    for _ in range(FIRST_RUNS + 2):
        compiled(*args)
    region = getattr(live()[-1]._run, "__self__", None)
    assert isinstance(region, RegionCall) and region._repeated is not None
    return compiled, region


def assert_as_eager(compiled: Any, module: Any, *args: Any) -> None:
    for _ in range(3):
        torch.testing.assert_close(compiled(*args), module(*args))


def replaced(module: Any) -> None:
    module[0] = nn.Linear(8, 16).eval()


def assigned(module: Any) -> None:
    module.load_state_dict(network().state_dict(), assign=True)


def shortened(module: Any) -> None:
    """The last layer has one row less, in the same memory."""
    for weight in (module[3].weight, module[3].bias):
        weight.data = weight.data[:-1]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda module: module[3].weight.mul_(2),
    "other memory": lambda module: setattr(module[3].weight, "data", torch.randn(4, 16)),
    "other strides": lambda module: setattr(module[3].weight, "data", torch.randn(16, 4).T),
    "a buffer": lambda module: setattr(module[2], "running_mean", torch.randn(16)),
    "a layer": replaced,
    "a state": assigned,
    "fewer rows": shortened,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_weights_that_change_are_seen(change: Callable[[Any], Any]) -> None:
    module, x = network(), torch.randn(3, 8)
    compiled, _ = repeating(module, x)
    change(module)
    assert_as_eager(compiled, module, x)
    change(module)
    assert_as_eager(compiled, module, x)


def test_inputs_that_change_are_seen() -> None:
    module, x = network(), torch.randn(3, 8)
    compiled, _ = repeating(module, x)
    for other in (torch.randn(3, 8), torch.randn(8, 3).T, torch.randn(6, 8)[::2], torch.randn(5, 8), torch.randn(7, 8)):
        assert_as_eager(compiled, module, other)
    kept = torch.randn(9, 8)
    for rows in (9, 6, 9, 3):
        kept.resize_(rows, 8)  # the same object in the same memory
        assert_as_eager(compiled, module, kept)
    assert_as_eager(compiled, module, x)


def test_results_are_new_tensors() -> None:
    module, x = network(), torch.randn(3, 8)
    compiled, _ = repeating(module, x)
    first = compiled(x)
    kept = first.clone()
    second = compiled(torch.randn(3, 8))
    assert torch.equal(first, kept) and first.data_ptr() != second.data_ptr()


def test_what_a_kernel_refuses_is_refused_again() -> None:
    module, words = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 4)).eval(), torch.tensor([[1, 4]])
    compiled, _ = repeating(module, words)
    for _ in range(2):
        with pytest.raises(DovetailError, match="7"):
            compiled(torch.tensor([[1, 7]]))
        assert_as_eager(compiled, module, words)


def test_layers_that_share_a_graph_take_turns() -> None:
    x = torch.randn(3, 8)
    layers = [nn.Linear(8, 8).eval() for _ in range(3)]
    compiled = [torch.compile(layer, backend=dovetail.torch.backend) for layer in layers]
    region = repeating(layers[0], x)[1]
    for _ in range(FIRST_RUNS * (MOST_REPEATS + 1) // 3):
        for layer, run in zip(layers, compiled, strict=True):
            torch.testing.assert_close(run(x), layer(x))
    assert region._repeats == MOST_REPEATS


def test_threads_call_at_once() -> None:
    module = network()
    compiled, _ = repeating(module, torch.randn(3, 8))
    wrong: list[float] = []

    def call(seed: int) -> None:
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            wanted = module(x)
            for _ in range(200):
                wrong.extend([d] if (d := float((compiled(x) - wanted).abs().max())) > 1e-5 else [])

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_repeated_call_holds_no_weights() -> None:
    module = network()
    _, region = repeating(module, torch.randn(3, 8))
    before = len(gc.get_referrers(module[0].weight))
    region._repeated = None
    assert len(gc.get_referrers(module[0].weight)) == before


def test_weights_stay_where_they_are() -> None:
    weights = [nn.Parameter(torch.randn(4)) for _ in range(3)]
    x = torch.randn(2)
    given = (weights[0], x, *weights[1:])
    test = Stay({0: weights[0], 2: weights[1], 3: weights[2]}, given, ()).test()
    gc.collect()  # the test alone keeps what it reads
    assert test(*given) and test(weights[0], torch.randn(3), *weights[1:])
    assert not test(*given[:-1]) and not test(*given, x)
    assert not test(given[2], x, given[0], given[3])
    assert not test(nn.Parameter(weights[0].data), *given[1:])
    before, weights[2].data = weights[2].data, torch.randn(4)
    assert not test(*given)
    weights[2].data = before
    assert test(*given)
    del given
    weights[1] = nn.Parameter(torch.randn(4))
    gc.collect()
    assert not test(weights[0], x, *weights[1:])
