"""attention as vision models write it, and layers on images of one pixel, judged in plain NumPy."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from tests.library.attending import Array, attend, feeds, found, near, plain_softmax, recognised, run, swap

B, W, H, N, D = 2, 4, 3, 16, 5


def joined(x: Value) -> Value:
    """Windows as more batches."""
    return ops.merge(x, axis=-4)


def test_shifted_windows_with_a_learnt_factor() -> None:
    """Queries and keys of length 1, a factor for each head, a bias of positions, a mask for each window."""
    q, k, v = (input(n, f32[B, W, H, N, D]) for n in "qkv")
    factor, bias, mask = param("s", f32[H, 1, 1]), param("p", f32[H, N, N]), param("m", f32[W, 1, N, N])
    units = [x / ops.maximum(ops.sqrt(ops.reduce_sum(x * x, axes=(-1,))), 1e-12) for x in map(joined, (q, k))]
    scores = (units[0] @ swap(units[1])) * factor + bias
    weights = plain_softmax(joined(ops.split(scores, axis=-4, parts=B) + mask))
    spelled = ops.split(weights @ joined(v), axis=-4, parts=B)
    assert found(spelled, "attention").shape == (B, W, H, N, D)
    graph = recognised(spelled).graph
    arrays = feeds(graph)
    flat = {n: arrays[n].reshape(B * W, H, N, D) for n in "qkv"}
    alike = {n: flat[n] / np.linalg.norm(flat[n], axis=-1, keepdims=True) for n in "qk"}
    added = (arrays["p"] + np.tile(arrays["m"], (B, 1, 1, 1))).reshape(B * W, H, N, N)
    expected = attend(alike["q"] * arrays["s"], alike["k"], flat["v"], added=added)
    near(run(graph, arrays)["y"], expected.reshape(B, W, H, N, D))


@pytest.mark.slow
def test_biases_of_rows_and_columns() -> None:
    """Scores seen as [row, column] of queries and of keys, with a bias for rows of keys and one for columns."""
    q, k, v = (input(n, f32[B, N, D]) for n in "qkv")
    rows, columns = input("r", f32[B, 4, 4, 4]), input("c", f32[B, 4, 4, 4])
    scores = ops.split(ops.split((q * 0.5) @ swap(k), axis=-1, parts=4), axis=-3, parts=4)
    biased = scores + ops.unsqueeze(rows, axes=(-1,)) + ops.unsqueeze(columns, axes=(-2,))
    spelled = plain_softmax(ops.merge(ops.merge(biased, axis=-1), axis=-2)) @ v
    assert found(spelled, "attention").shape == (B, N, D)
    graph = recognised(spelled).graph
    arrays = feeds(graph)
    added = (arrays["r"][..., None] + arrays["c"][..., None, :]).reshape(B, 1, N, N)
    of_one_head = [arrays[n][:, None] for n in "qkv"]
    near(run(graph, arrays)["y"], attend(*of_one_head, scale=0.5, added=added)[:, 0])


def test_squeeze_and_excitation_is_two_linear_layers() -> None:
    x = input("x", f32[B, 8, 3, 3])
    shapes = {"w": (4, 8, 1, 1), "u": (8, 4, 1, 1), "b": (4, 1, 1), "c": (8, 1, 1)}
    w, u, b, c = (param(name, f32[shape]) for name, shape in shapes.items())
    gate = ops.relu(ops.conv(ops.reduce_mean(x, axes=(-2, -1)), w) + b)
    graph = recognised(x * ops.sigmoid(ops.conv(gate, u) + c)).graph
    names = [v.op.name for v in graph.values]
    assert names.count("linear") == 2
    assert "conv" not in names and "conv_bias_act" not in names
    arrays = feeds(graph)
    near(run(graph, arrays)["y"], _excited(arrays))


def _excited(arrays: dict[str, Array]) -> Array:
    flat = {n: a.reshape(a.shape[0], prod(a.shape[1:])) for n, a in arrays.items() if n != "x"}
    hidden = np.maximum(arrays["x"].mean((2, 3)) @ flat["w"].T + flat["b"][:, 0], 0)
    return arrays["x"] / (1 + np.exp(-(hidden @ flat["u"].T + flat["c"][:, 0])))[:, :, None, None]
