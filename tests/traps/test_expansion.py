"""Traps 22 to 29: what is lost or turned round where a fused op is spelled out for a target that has no kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.derive.fuse import fuse
from dovetail.derive.unfuse import unfuse
from dovetail.dtypes import bool_, f32
from dovetail.errors import BindError, TypeRuleError
from dovetail.ir.leaf import input, param
from dovetail.library import ALL
from dovetail.library.attention import attention
from dovetail.library.gated_product import gated_product
from dovetail.library.scores import scores
from dovetail.library.silu import silu
from dovetail.library.softmax import softmax
from dovetail.library.wide_swiglu import wide_swiglu
from dovetail.passes.legalize import legalize
from dovetail.passes.lowerings import LOWERINGS
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cuda.claims import CLAIMS as CUDA
from tests.library import judge
from tests.library.judge import Array, near, numbers, run

ATTENTION = (softmax, scores, attention)
HIDDEN = float("-inf")


def spelled_out(graph: Graph, *names: str) -> list[Graph]:
    """The graph for targets without kernels for these ops, with implicit and with explicit broadcasts."""
    forms: list[Graph] = []
    for claims in (CPU, CUDA):
        native = {k: v for k, v in claims.native.items() if k not in names}
        forms.append(legalize(graph, replace(claims, native=native), lowerings=LOWERINGS).graph)
        assert not {v.op.name for v in forms[-1].values} & set(names)
    return forms


def test_trap_22_the_order_of_the_halves() -> None:
    """An expansion that always takes the second half for the gate computes silu(up) * gate for every other model.

    Which half is the gate survives recognition and expansion, with either order of the product.
    """
    x, w = input("x", f32[3, 5]), param("w", f32[5, 8])
    for rows, op in ((x @ w, wide_swiglu), (input("y", f32[3, 8]), gated_product)):
        first, second = (ops.part(rows, axis=-1, index=i, parts=2) for i in (0, 1))
        for value, gate in (
            (first * silu(second), 1),
            (silu(second) * first, 1),
            (second * silu(first), 0),
            (silu(first) * second, 0),
        ):
            fused = fuse(Graph.of(value), ALL, always=True).graph
            assert fused.count(op) == 1
            arrays = numbers(fused)
            halves = np.split(arrays["x"] @ arrays["w"] if op is wide_swiglu else arrays["y"], 2, axis=-1)
            for form in (fused, *spelled_out(fused, "wide_swiglu", "gated_product", "silu")):
                near(run(form, arrays)["y"], halves[1 - gate] * judge.silu(halves[gate]))


def attend(
    arrays: dict[str, Array],
    bias: Callable[[int, int, int, int], float] = lambda b, h, i, j: 0.0,
    *,
    scale: float = 1.0,
    softcap: float | None = None,
    groups: int = 1,
) -> Array:
    """Attention one query at a time; `bias` is added to the score of (batch, head, query, key)."""
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    result = np.zeros((*q.shape[:3], v.shape[3]))
    for b, h, i in np.ndindex(*q.shape[:3]):
        found: list[float] = []
        for j in range(k.shape[2]):
            score = scale * float(sum(q[b, h, i, d] * k[b, h // groups, j, d] for d in range(q.shape[3])))
            score = score if softcap is None else softcap * math.tanh(score / softcap)
            found.append(score + bias(b, h, i, j))
        weights = [math.exp(s - max(found)) for s in found]
        for j, weight in enumerate(weights):
            result[b, h, i] += weight / sum(weights) * v[b, h // groups, j]
    return result


# Every axis but the last has the size 3, so that no shape gives away an axis that is taken for another.
Q, K, V = (input(name, f32[3, 3, 3, 4]) for name in "qkv")


def probabilities(x: Value) -> Value:
    raised = ops.exp(x - ops.reduce_max(x, axes=(-1,)))
    return raised / ops.reduce_sum(raised, axes=(-1,))


def products(k: Value = K) -> Value:
    return Q @ ops.permute(k, order=(-1, -2))


def attended(value: Value) -> tuple[list[Graph], dict[str, Array], dict[str, Any]]:
    """A spelled attention fused and spelled out again, arrays for it, and what the fused op was given."""
    fused = fuse(Graph.of(value), ATTENTION, always=True).graph
    (made,) = (v for v in fused.values if v.op is attention)
    kept = legalize(fused, CUDA, lowerings=LOWERINGS).graph
    forms = [Graph.of(value), fused, kept, unfuse(fused), *spelled_out(fused, "attention", "softmax", "scores")]
    return forms, numbers(fused), dict(attention.of(made).names)


def test_trap_23_a_mask_of_batch_and_keys() -> None:
    """A kernel that indexes [b, h, sq, sk] and is handed [b, sk] reads the mask of the batch as one of the queries.

    A padding mask serves all heads and queries of its batch. Given as [b, sk] it is one of [sq, sk], or an error.
    """
    padding = input("m", f32[3, 3])
    value = probabilities(products() + ops.unsqueeze(padding, axes=(-3, -2))) @ V
    forms, arrays, given = attended(value)
    assert given["mask"].shape == (3, 1, 1, 3)
    for form in forms:
        near(run(form, arrays)["y"], attend(arrays, lambda b, h, i, j: arrays["m"][b, j]))
    forms, arrays, given = attended(probabilities(products() + padding) @ V)
    for form in forms:
        near(run(form, arrays)["y"], attend(arrays, lambda b, h, i, j: arrays["m"][i, j]))
    with pytest.raises(TypeRuleError, match="broadcast"):
        ops.add(products(), input("m", f32[2, 3]))


@pytest.mark.slow
def test_trap_24_a_mask_of_batch_queries_and_keys() -> None:
    """[b, sq, sk] aligned at its last axes is [h, sq, sk]: each head is given the mask of another batch.

    A mask of a batch has an axis for its heads; a mask of three axes is one of heads.
    """
    mask = input("m", f32[3, 3, 3])
    forms, arrays, given = attended(probabilities(products() + ops.unsqueeze(mask, axes=(-3,))) @ V)
    assert given["mask"].shape == (3, 1, 3, 3)
    for form in forms:
        near(run(form, arrays)["y"], attend(arrays, lambda b, h, i, j: arrays["m"][b, i, j]))
    forms, arrays, given = attended(probabilities(products() + mask) @ V)
    for form in forms:
        near(run(form, arrays)["y"], attend(arrays, lambda b, h, i, j: arrays["m"][h, i, j]))
    full = input("m", f32[3, 3, 3, 3])
    forms, arrays, given = attended(probabilities(products() + full) @ V)
    for form in forms:
        near(run(form, arrays)["y"], attend(arrays, lambda b, h, i, j: arrays["m"][b, h, i, j]))


@pytest.mark.slow
def test_trap_25_scale_softcap_and_bias_survive() -> None:
    """Expansions written for the usual case forget a scale that is not 1/sqrt(d), a softcap, or an additive bias.

    What the fused op was given is found in its expansion, for scale, softcap and bias alone and together.
    """
    bias = input("m", f32[3, 3])
    for scale, softcap, biased in ((0.25, None, False), (0.25, 1.5, False), (2.0, 0.75, True), (0.5, None, True)):
        found = products() * scale
        if softcap is not None:
            found = ops.tanh(found / softcap) * softcap
        value = probabilities(found + bias if biased else found) @ V
        forms, arrays, given = attended(value)
        assert (given["scale"], given["softcap"], given["mask"]) == (scale, softcap, bias if biased else None)
        added = arrays["m"] if biased else np.zeros((3, 3))
        wanted = attend(arrays, lambda b, h, i, j, m=added: m[i, j], scale=scale, softcap=softcap)
        for form in forms:
            near(run(form, arrays)["y"], wanted)


@pytest.mark.slow
def test_trap_26_fewer_heads_of_keys_than_of_queries() -> None:
    """With two heads of keys for six of queries, head h reads h // 3; an index modulo 2 reads another one.

    Grouped heads are neighbours, in the fused op and in its expansion; one head for all is shared by all.
    """
    q, wide = input("q", f32[2, 6, 3, 4]), [input(name, f32[2, 2, 5, 4]) for name in "kv"]
    k, v = (ops.merge(ops.expand(ops.unsqueeze(x, axes=(-3,)), axis=-3, size=3), axis=-3) for x in wide)
    forms, arrays, given = attended(probabilities((q @ ops.permute(k, order=(-1, -2))) * 0.5) @ v)
    assert (given["k"], given["v"], given["groups"]) == (*wide, 3)
    for form in forms:
        near(run(form, arrays)["y"], attend(arrays, scale=0.5, groups=3))
    k, v = (input(name, f32[2, 1, 5, 4]) for name in "kv")
    forms, arrays, given = attended(probabilities((q @ ops.permute(k, order=(-1, -2))) * 0.5) @ v)
    for form in forms:
        near(run(form, arrays)["y"], attend(arrays, scale=0.5, groups=6))


def test_trap_27_a_keep_mask_is_no_additive_mask() -> None:
    """A mask of 1 for "keep" that is added raises the scores it keeps by 1 and hides nothing, and the other way round.

    A bool mask hides, a float mask is added, and each is handed on as what it is.
    """
    keep, mask = input("keep", bool_[3, 1, 3, 3]), input("m", f32[3, 3])
    kept = (np.arange(3).reshape(3, 1, 1, 1) * 2 + np.add.outer(np.arange(3), np.arange(3))) % 3 != 0
    for both in (False, True):
        found = products() + mask if both else products()
        forms, arrays, given = attended(probabilities(ops.where(keep, found, HIDDEN)) @ V)
        assert (given["keep"], given["mask"], given["fill"]) == (keep, mask if both else None, HIDDEN)
        arrays["keep"] = kept

        def bias(b: int, h: int, i: int, j: int, arrays: dict[str, Array] = arrays, both: bool = both) -> float:
            return (float(arrays["m"][i, j]) if both else 0.0) if kept[b, 0, i, j] else HIDDEN

        for form in forms:
            near(run(form, arrays)["y"], attend(arrays, bias))
    forms, arrays, given = attended(probabilities(products() + mask) @ V)
    assert (given["keep"], given["mask"], given["fill"]) == (None, mask, None)
    for form in forms:
        near(run(form, arrays)["y"], attend(arrays, lambda b, h, i, j: arrays["m"][i, j]))


def test_trap_28_a_low_rank_update_of_a_batch() -> None:
    """Lora kernels that read [m, k] take the batch of [b, s, k] for the rows, and the sequence for the columns.

    Any axes may stand in front of the rows; the scale is kept, early or late.
    """
    w, a, b = param("w", f32[5, 6]), param("a", f32[5, 2]), param("b", f32[2, 6])
    for leading in ((), (3,), (2, 3)):
        x = input("x", f32[(*leading, 4, 5)])
        for value, scale in (
            (x @ w + (x @ a) @ b, 1.0),
            (x @ w + ((x @ a) @ b) * 0.25, 0.25),
            (x @ w + ((x @ a) * 0.25) @ b, 0.25),
        ):
            fused = fuse(Graph.of(value), ALL, always=True).graph
            arrays = numbers(fused)
            weights = arrays["w"] + scale * np.einsum("kr,rn->kn", arrays["a"], arrays["b"])
            wanted = np.einsum("...k,kn->...n", arrays["x"], weights)
            got = run(fused, arrays)["y"]
            assert got.shape == (*leading, 4, 6)
            near(got, wanted)


def test_trap_29_the_contracted_sizes_of_a_general_dot_are_compared() -> None:
    """A general dot that takes its size from the left operand reads past the right one, or stops before its end.

    Sizes that differ are an error: at once where both are known, and when they are bound where they are not.
    """
    x = input("x", f32[2, 3, 4])
    for other, axes in (
        (f32[5, 6], {"left": (-1,), "right": (-2,)}),
        (f32[4, 2, 6], {"left": (-2, -1), "right": (-2, -3)}),
        (f32[3, 4, 6], {"left": (-1,), "right": (-2,), "left_batch": (-3,), "right_batch": (-3,)}),
    ):
        with pytest.raises(TypeRuleError, match="sizes"):
            ops.dot(x, input("y", other), **axes)
    y = input("y", f32[6, 4, 2])
    for axes, letters in (
        ({"left": (-1,), "right": (-2,)}, "abk,nkc->abnc"),
        ({"left": (-1,), "right": (-2,), "left_batch": (-3,), "right_batch": (-1,)}, "bmk,nkb->bmn"),
        ({"left": (-3, -1), "right": (-1, -2)}, "lmk,nkl->mn"),
        ({"left": (), "right": (), "left_batch": (-1, -3), "right_batch": (-2, -1)}, "bma,nab->abmn"),
    ):
        graph = Graph.of(ops.dot(x, y, **axes))
        arrays = numbers(graph)
        for form in (graph, *spelled_out(graph, "dot")):
            near(run(form, arrays)["y"], np.einsum(letters, arrays["x"], arrays["y"]))
    open_ = Graph.of(ops.dot(input("x", f32[2, "k"]), input("y", f32["n", 3]), left=(-1,), right=(-2,)))
    for form in (open_, *spelled_out(open_, "dot")):
        near(run(form, {"x": np.ones((2, 4)), "y": np.ones((4, 3))})["y"], np.full((2, 3), 4.0))
        with pytest.raises(BindError, match="k"):
            run(form, {"x": np.ones((2, 4)), "y": np.ones((5, 3))})
