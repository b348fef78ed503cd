"""Peers of decoders: blocks become the weights of `MatMulNBits`, and processes answer as the benchmark asks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import library
from dovetail.ir import leaf
from dovetail.ir.dtype import u8
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from tests.block_arrays import random_blocks

FOLDER = Path(__file__).parents[2] / "benchmarks"


def _module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    return importlib.import_module(name)


def _dequantised(blocks: Array, name: Any) -> Array:
    graph = Graph.of({"y": library.dequantise_blocks(leaf.input("x", u8[blocks.shape]), format=name)})
    return dovetail.compile(graph, target="reference").run({"x": blocks})["y"]


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q6_k"])
def test_blocks_keep_their_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = random_blocks(name, 6, 512)
    found = _module("decode_steps.onnx_weights", monkeypatch).n_bits(blocks, name)
    assert np.array_equal(found.floats(), _dequantised(blocks, name))


def test_lows_become_the_nearest_zero_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale 1/2 and low 5/4 are a zero point of 2.5, which is rounded to 2: weights are too large by a quarter."""
    blocks = random_blocks("q4_k", 6, 512).reshape(6, 2, 144)
    blocks[..., :4] = np.array([0.5, 1.25], np.float16).view(np.uint8)
    blocks[..., 4:16] = [1] * 8 + [17] * 4
    blocks = blocks.reshape(6, -1)
    found = _module("decode_steps.onnx_weights", monkeypatch).n_bits(blocks, "q4_k")
    assert np.array_equal(found.floats(), _dequantised(blocks, "q4_k") + np.float32(0.25))


def test_formats_without_an_equal_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _module("decode_steps.onnx_weights", monkeypatch).n_bits(random_blocks("q5_0", 2, 64), "q5_0") is None


class _Generator:
    """Takes two seconds for a prompt and one for each token after it."""

    precision = "f32"

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[tuple[int, int]] = []

    def ticks(self, tokens: Sequence[int], count: int, clock: Callable[[], float]) -> list[float]:
        self.asked.append((len(tokens), count))
        self.now += 1
        found: list[float] = []
        for _ in range(count):
            self.now += 1
            found.append(clock())
        return found


def test_a_peer_that_only_generates_is_timed_by_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    serve, peer = _module("decode_steps.serve", monkeypatch), _Generator()
    monkeypatch.setitem(serve.MODULES, "fake", "fake_peer")

    def load(path: str, threads: int, name: str) -> _Generator:
        return peer

    monkeypatch.setitem(sys.modules, "fake_peer", SimpleNamespace(load=load))
    seat = serve.Seat("fake", "file", 2, lambda: peer.now)
    assert seat.answer("start")["precision"] == "f32"
    assert seat.answer("step 512 1.0") == {"runs": [1.0] * serve.GENERATED}
    assert seat.answer("prompt 100") == {"runs": [2.0]}
    assert peer.asked == [(8, 1), (512, serve.GENERATED + 1), (100, 1)]
    assert "refused" in seat.answer("scores file 1 2")
