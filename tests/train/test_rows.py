"""Gradients of tables by rows: the same weights as with a dense gradient, and no table of zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail import Builder, Graph, ops
from dovetail.dtypes import f32, i64
from dovetail.ir.leaf import input
from dovetail.ops.adjoint import zeros
from dovetail.train import SGD, Adafactor, AdamW, Group, Lion, Trainer
from dovetail.train.losses import mean_squared
from dovetail.train.optimizers import Optimizer
from dovetail.train.rows import rows_of

TABLE, WIDTH = 640, 6


def looked_up() -> Graph:
    builder = Builder("lookup")
    ids, wanted = builder.input("ids", i64[4, 5]), builder.input("wanted", f32[4, 5, 2])
    found = ops.gather(builder.param("table", f32[TABLE, WIDTH]), ids, axis=0)
    builder.output("loss", mean_squared(found @ builder.param("w", f32[WIDTH, 2]), wanted))
    return builder.graph()


def batch(seed: int) -> dict[str, Any]:
    """Rows that are named several times, also from the end."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 9, (4, 5))
    ids[0, 0], ids[1, 1] = -1, TABLE - 1
    return {"ids": ids, "wanted": rng.normal(size=(4, 5, 2)).astype(np.float32)}


def trained(monkeypatch: pytest.MonkeyPatch, few: float, optimizer: Optimizer, **options: Any) -> Trainer:
    monkeypatch.setattr("dovetail.train.rows.FEW", few)
    trainer = Trainer(looked_up(), optimizer=optimizer, seed=3, **options)
    trainer.fit([batch(i) for i in range(4)])
    return trainer


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (AdamW(0.01), {"clip_norm": 0.5, "groups": [Group("table", lr_scale=0.5, weight_decay=0.1)]}),
        (SGD(0.1, momentum=0.9, weight_decay=0.01), {"clip_value": 0.01}),
        (Lion(0.01), {}),
    ],
    ids=["adamw", "sgd", "lion"],
)
def test_weights_are_those_of_a_dense_gradient(
    monkeypatch: pytest.MonkeyPatch, optimizer: Optimizer, options: dict[str, Any]
) -> None:
    rows, dense = (trained(monkeypatch, few, optimizer, **options) for few in (8, 1e9))
    for name, array in dense.params.items():
        np.testing.assert_allclose(rows.params[name], array, rtol=1e-5, atol=1e-6)
    table = TABLE * WIDTH * 4
    assert int(str(rows.program.plan.arena_size)) < table <= int(str(dense.program.plan.arena_size))
    assert not [d for d in rows.program.plan.donations if d.copied], "tables are written in place"


@pytest.mark.heavy
def test_updates_that_read_other_rows_have_a_dense_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, dense = (trained(monkeypatch, few, Adafactor()) for few in (8, 1e9))
    for name, array in dense.params.items():
        np.testing.assert_array_equal(rows.params[name], array)


@pytest.mark.parametrize(("rows", "reduction", "found"), [(8, "add", True), (9, "add", False), (8, "max", False)])
def test_where_rows_are_found(rows: int, reduction: Any, found: bool) -> None:
    by, added = input("by", i64[rows, 1]), input("added", f32[rows, 3])
    assert (rows_of(ops.scatter_nd(zeros((64, 3), f32), by, added, reduction=reduction)) is not None) is found
    assert rows_of(ops.scatter_nd(input("x", f32[64, 3]), by, added, reduction=reduction)) is None
