"""Calls through torch.compile that come again: whatever changes between two of them, they give what eager does."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import copy
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dovetail.torch
from dovetail.errors import DovetailError
from dovetail.targets.runtime.calls.repeated_call import AddressWrite
from dovetail.torch.compiled import live
from dovetail.torch.region_call import FIRST_RUNS, MOST_REPEATS, RegionCall
from dovetail.torch.staying import Stay, can_stay, is_compiled

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
dynamo: Any = pytest.importorskip("torch._dynamo")
pytestmark = [
    pytest.mark.slow,
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
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 4)).eval()
    module[3].weight.data = torch.randn(6, 16)[:4]
    return module


def repeating(module: Any, *args: Any) -> tuple[Any, RegionCall]:
    """A compiled module that has been called until its weights are no longer looked at one by one."""
    compiled = torch.compile(module, backend=dovetail.torch.backend)
    while not is_compiled():
        time.sleep(0.001)
    compiled(*args)
    region = live()[-1]._run
    for _ in range(FIRST_RUNS + 2):
        compiled(*args)
    assert isinstance(region, RegionCall) and live()[-1]._run is region._repeated
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


def moved_within(module: Any) -> None:
    """The last layer has the next rows of its storage."""
    weight = module[3].weight
    weight.set_(weight.untyped_storage(), weight.storage_offset() + 16, weight.shape)


def reallocated(module: Any) -> None:
    """The storage of the last layer lets its memory go, and gets other memory."""
    weight = module[3].weight
    kept, storage = weight.clone(), weight.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    held = [torch.empty(size, dtype=torch.uint8) for _ in range(8)]
    storage.resize_(size)
    weight.copy_(2 * kept)
    assert held


CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda module: module[3].weight.mul_(2),
    "other memory": lambda module: setattr(module[3].weight, "data", torch.randn(4, 16)),
    "other strides": lambda module: setattr(module[3].weight, "data", torch.randn(16, 4).T),
    "other rows of its memory": moved_within,
    "other memory of its storage": reallocated,
    "shared memory": lambda module: module.share_memory() and module[3].weight.mul_(2),
    "a parameter": lambda module: setattr(module[3], "weight", nn.Parameter(torch.randn(4, 16))),
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


def test_addresses_of_other_tensors_are_written() -> None:
    weight, x, y = nn.Parameter(torch.randn(4)), torch.randn(2), torch.randn(3, dtype=torch.float64)
    words = np.zeros(3, np.int64)
    writes = [
        AddressWrite(index, words.ctypes.data + 8 * at, offset)
        for index, at, offset in ((0, 0, 0), (2, 1, 0), (2, 2, 24))
    ]
    test = Stay({1: weight}, (x, weight, y), writes).test()
    for first, last in ((x, y), (x[1:], y[2:]), (torch.randn(5), y)):
        assert test(first, weight, last)
        assert words.tolist() == [first.data_ptr(), last.data_ptr(), last.data_ptr() + 24]
    weight.data = torch.randn(4)
    assert not test(x, weight, y) and words[0] != x.data_ptr()


def test_tensors_without_storage_do_not_stay() -> None:
    x, words = torch.randn(4), np.zeros(1, np.int64)
    test = Stay({}, (x,), [AddressWrite(0, words.ctypes.data, 0)]).test()
    assert not test(x.to_sparse()) and not words[0]
    assert test(x) and words[0] == x.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_storages_of_weights_and_inputs_can_be_resized(dtype: Any) -> None:
    module, x = nn.Linear(8, 4).to(dtype).eval(), torch.randn(3, 8).to(dtype)
    exact = copy.deepcopy(module).double()
    compiled = torch.compile(module, backend=dovetail.torch.backend)
    for rows in (3, 5, 7):
        x.resize_(rows, 8).copy_(torch.randn(rows, 8))
        torch.testing.assert_close(compiled(x).double(), exact(x.double()), rtol=0, atol=4 * torch.finfo(dtype).eps)
    assert x.untyped_storage().resizable() and module.weight.untyped_storage().resizable()
