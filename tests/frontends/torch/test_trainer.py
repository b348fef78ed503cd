"""The trainer on modules of torch: what it trains, what it leaves as it is, what it takes as a batch."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import load
from dovetail.errors import BindError, OptionError
from dovetail.train import SGD, AdamW, Trainer

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")


class Network(nn.Module):
    """A table in a buffer, a layer and a norm that are trained, and a layer that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.full((9,), 0.5))
        self.first, self.norm = nn.Linear(9, 9), nn.BatchNorm1d(9)
        self.last = nn.Linear(9, 9).requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.last(self.norm(self.first(x + self.table)))


def batch() -> dict[str, Any]:
    return {"x": torch.randn(16, 9), "labels": torch.randint(0, 9, (16,))}


def held_by(module: Any) -> dict[str, Any]:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}


def check(trainer: Trainer, before: dict[str, Any]) -> None:
    """The first layer and the norm's own weights are trained, and nothing else."""
    assert set(trainer.weights) == {"first.weight", "first.bias", "norm.weight", "norm.bias"}
    trainer.fit([batch() for _ in range(5)])
    after = trainer.params
    for name in ("table", "last.weight", "last.bias"):
        np.testing.assert_array_equal(after[name], before[name])
    assert (after["first.weight"] != before["first.weight"]).any()
    assert (after["norm.running_mean"] != 0).any()
    assert "table (a buffer)" in trainer.summary and "last.weight (requires_grad is False)" in trainer.summary


def test_buffers_and_frozen_weights_stay_as_they_are(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Network().eval(), torch.randn(16, 9)
    before = held_by(module)
    exported = torch.export.export(module, (x,), dynamic_shapes={"x": {0: torch.export.Dim("n")}})
    torch.export.save(exported, tmp_path / "network.pt2")
    for given in (tmp_path / "network.pt2", exported):
        check(Trainer(given, "cross_entropy", SGD(0.1)), before)
    trainer = Trainer(module, "cross_entropy", "sgd", args=(x,), dynamic={"x": {0: "n"}})
    check(trainer, before)
    for name, array in held_by(module).items():
        np.testing.assert_array_equal(array, before[name])  # the trainer has copies
    trainer.update_module()
    after = held_by(module)
    for name, array in trainer.params.items():
        np.testing.assert_array_equal(after[name], array)
    assert load(tmp_path / "network.pt2").frozen["table"] == "a buffer"


def test_one_tensor_with_a_name_that_is_trained_is_trained() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(4, 4, bias=False)
            self.register_buffer("view", self.one.weight.data)

        def forward(self, x: Any) -> Any:
            return self.one(x) + x @ self.view

    trainer = Trainer(Tied(), "mean_squared", SGD(0.1), args=(torch.randn(2, 4),))
    assert len(trainer.weights) == 1


def test_steps_are_those_of_torch() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 9))
    exact = copy.deepcopy(module).double()
    trainer = Trainer(module, "cross_entropy", SGD(0.1), args=(torch.randn(16, 9),))
    optimizer = torch.optim.SGD(exact.parameters(), 0.1)
    feeds = [(torch.randn(16, 9), torch.randint(0, 9, (16,))) for _ in range(12)]
    loader = torch.utils.data.DataLoader(feeds, batch_size=None)
    metrics = trainer.fit(loader)
    for one, (rows, labels) in zip(metrics, feeds, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(exact(rows.double()), labels)
        loss.backward()
        optimizer.step()
        assert one.loss == pytest.approx(float(loss), rel=1e-5)
    for name, tensor in exact.named_parameters():
        np.testing.assert_allclose(trainer.params[name], tensor.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_what_is_not_taken_is_refused_in_words() -> None:
    module = nn.Linear(8, 4)
    with pytest.raises(OptionError, match="without a call to export it by") as raised:
        Trainer(module, "cross_entropy", AdamW(0.1))
    assert "args=(x,)" in str(raised.value)
    with pytest.raises(OptionError, match="no optimizer of dovetail's") as raised:
        Trainer(module, "cross_entropy", torch.optim.AdamW(module.parameters()), args=(torch.ones(2, 8),))
    assert "dovetail.train.AdamW is one" in str(raised.value)
    trainer = Trainer(module, "cross_entropy", args=(torch.ones(2, 8),))
    with pytest.raises(BindError, match="has X, which nothing reads and lacks input"):
        trainer.step({"X": torch.ones(2, 8), "labels": torch.zeros(2, dtype=torch.long)})
