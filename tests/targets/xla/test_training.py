"""Training on meshes: the loss curve of one device, one sum of all gradients, donated state, checkpoints that move."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import Builder, Graph, compile, ops
from dovetail.errors import BindError
from dovetail.ir.dtype import f32, i64
from dovetail.ir.literal import Array
from dovetail.settings import Settings
from dovetail.targets import xla
from dovetail.targets.runtime.building.store import store_of
from dovetail.train import SGD, Trainer

pytest.importorskip("jax")

BATCH, WIDE = 8, 16
MESHES: dict[str, dict[str, int]] = {"data": {"dp": 8}, "both": {"dp": 2, "tp": 4}}
PLACE = {"x": "dp", "labels": "dp", "up": "- tp", "down": "tp"}


def network() -> Graph:
    builder = Builder("network")
    x = builder.input("x", f32[BATCH, WIDE])
    up, down = builder.param("up", f32[WIDE, 32]), builder.param("down", f32[32, 4])
    builder.output("logits", ops.matmul(ops.maximum(ops.matmul(x, up), 0.0), down))
    return builder.graph()


def batches(count: int) -> list[dict[str, Array]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((BATCH, WIDE)).astype(np.float32), "labels": np.arange(BATCH) % 4}] * count


def trainer(mesh: dict[str, int] | None, **options: Any) -> Trainer:
    place = {n: " ".join(w if w in (mesh or {}) else "-" for w in words.split()) for n, words in PLACE.items()}
    target = "reference" if mesh is None else xla.target(mesh=mesh, place=place)
    return Trainer(network(), "cross_entropy", SGD(lr=0.5, momentum=0.5), target=target, **options)


def collectives(made: Trainer) -> list[str]:
    """The results of the collectives of the program of a device."""
    runner: Any = made.program._binding.runner  # pyright: ignore[reportPrivateUsage]
    return re.findall(r"= (.*?) (?:all-reduce|all-gather|collective-permute|all-to-all)\(", runner.compiled.as_text())


def test_the_loss_curve_on_every_mesh_is_that_of_one_device(tmp_path: Path) -> None:
    data = batches(6)
    alone = [m.loss for m in trainer(None).fit(data)]
    assert alone[-1] < alone[0]
    made = {name: trainer(mesh) for name, mesh in MESHES.items()}
    for name, one in made.items():
        np.testing.assert_allclose([m.loss for m in one.fit(data[:3])], alone[:3], rtol=1e-5, err_msg=name)
        state: Any = one._state.arrays  # pyright: ignore[reportPrivateUsage]
        assert {a.device for a in state.values()} == {"xla:cpu×8"}
    # One sum of the bytes of all weights, and of the loss with them.
    (sums,) = collectives(made["data"])
    sizes = [math.prod(map(int, re.findall(r"\d+", shape))) for shape in re.findall(r"f32\[(.*?)\]", sums)]
    assert sum(sizes) == WIDE * 32 + 32 * 4 + 1
    # A checkpoint of one mesh goes on on the other.
    made["data"].save(tmp_path / "state")
    made["both"].load(tmp_path / "state")
    np.testing.assert_allclose([m.loss for m in made["both"].fit(data[3:])], alone[3:], rtol=1e-5)
    assert made["both"].steps == 6


def counting() -> Graph:
    builder = Builder("count")
    total, x = builder.input("total", f32[8, 2]), builder.input("x", f32[8, 2])
    at = builder.input("at", i64[1])
    builder.output("next", total + x, into="total")
    builder.output("row", ops.gather(total, at, axis=-2))
    return builder.graph()


def test_donated_arrays_stay_on_the_devices(tmp_path: Path) -> None:
    place = {"total": "dp", "x": "dp"}
    for target in ("xla", xla.target(mesh={"dp": 4}, place=place)):
        program = compile(counting(), target=target, cache=str(tmp_path))
        ones = np.ones((8, 2), np.float32)
        there = program.to_device({"total": np.zeros((8, 2), np.float32), "x": ones})
        for count in range(3):
            found = program.run({**there, "at": np.array([3])}, outputs="device")
            assert found["next"] is there["total"]
            np.testing.assert_array_equal(found["row"].numpy(), [[count, count]])
        np.testing.assert_array_equal(there["total"].numpy(), 3 * ones)
        host = program.run({**there, "at": np.array([0])})
        assert host["next"] is there["total"] and isinstance(host["row"], np.ndarray)
        with pytest.raises(BindError, match="index 8 into an axis of size 8"):
            program.run({**there, "at": np.array([8])}, outputs="device")
        with pytest.raises(BindError, match="shares memory"):
            program.run({**there, "x": there["total"], "at": np.array([0])}, outputs="device")
    with pytest.raises(BindError, match="split over devices"):
        np.from_dlpack(there["total"])  # pyright: ignore[reportPossiblyUnboundVariable]


def test_a_graph_of_constants_runs_on_a_mesh_and_from_the_cache(tmp_path: Path) -> None:
    builder = Builder("constants")
    builder.output("y", ops.iota(size=4, dtype=f32) + 1.0)
    for _ in range(2):
        program = compile(builder.graph(), target=xla.target(mesh={"dp": 4}), cache=str(tmp_path))
        assert program.run({})["y"].tolist() == [1, 2, 3, 4]


def test_executables_are_kept(tmp_path: Path) -> None:
    store = store_of(Settings(cache=str(tmp_path)))
    assert store is not None
    feeds = {"total": np.zeros((8, 2), np.float32), "x": np.ones((8, 2), np.float32), "at": np.array([1])}
    for hits in (0, 1):
        found = compile(counting(), target="xla", cache=str(tmp_path)).run({n: a.copy() for n, a in feeds.items()})
        np.testing.assert_array_equal(found["next"], feeds["x"])
        assert (store.hits, store.status().entries) == (hits, {"xla": 1})
