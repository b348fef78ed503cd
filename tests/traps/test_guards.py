"""Traps 6 to 14: graphs that look like a fusion and are none."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.derive.fuse import Fused, fuse
from dovetail.derive.missed import PRIVATE
from dovetail.dtypes import f16, f32
from dovetail.errors import TypeRuleError
from dovetail.graphs import TensorType
from dovetail.ir.leaf import constant, input, param
from dovetail.library import ALL
from dovetail.library.attention import attention
from dovetail.library.gated_product import gated_product
from dovetail.library.heads import merge_heads, split_heads
from dovetail.library.layer_norm import layer_norm
from dovetail.library.linear import linear
from dovetail.library.partial_rope import partial_rope
from dovetail.library.residual_layer_norm import residual_layer_norm
from dovetail.library.residual_rms_norm import residual_rms_norm
from dovetail.library.rms_norm import rms_norm
from dovetail.library.rope import rope
from dovetail.library.rope_attention import rope_attention
from dovetail.library.scores import scores
from dovetail.library.silu import silu
from dovetail.library.softmax import softmax
from dovetail.library.swiglu import swiglu
from dovetail.library.wide_swiglu import wide_swiglu
from dovetail.ops.build import slice_axis
from dovetail.passes.canonicalize import canonicalize
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.reference.interpreter import evaluate
from tests.library import judge
from tests.library.judge import names, near, numbers, one, run

EPS = 2.0**-16
"""A number that f32 has exactly."""


def reasons(fused: Fused, rule: str) -> set[str]:
    return {m.reason for m in fused.missed if m.rule == rule}


def fits_the_kernel(graph: Graph) -> bool:
    """Whether every linear has one matrix and one number for each of its columns: all that its kernel reads."""
    calls = [linear.of(v) for v in graph.values if v.op is linear]
    return all(c.w.rank == 2 and (c.b is None or c.b.shape == c.w.shape[1:]) for c in calls)


def added(x: TensorType, w: TensorType, b: TensorType) -> tuple[Fused, dict[str, judge.Array]]:
    """relu(x @ w + b) after fusing, and arrays for it."""
    value = ops.relu(input("x", x) @ param("w", w) + param("b", b))
    fused = fuse(Graph.of(value), ALL, always=True)
    return fused, numbers(fused.graph)


def test_trap_06_a_bias_of_one_number() -> None:
    """An epilogue that reads b[column] of a bias with one element reads past its end, or adds what lies there.

    A scalar bias and a bias of length 1 stay outside of linear, and the report names the guard.
    """
    for type in (f32[()], f32[1], f32[1, 1], f32[4, 1], f32[1, 6]):
        fused, arrays = added(f32[4, 5], f32[5, 6], type)
        assert fits_the_kernel(fused.graph)
        assert reasons(fused, "linear") == {"bias_is_a_vector"}
        product = np.einsum("mk,kn->mn", arrays["x"], arrays["w"])
        near(run(fused.graph, arrays)["y"], judge.relu(product + arrays["b"]))


def test_trap_06_a_bias_that_is_wider_than_the_product() -> None:
    """[m, 1] + [n] makes a matrix of an outer sum; a kernel that writes the product's shape writes one column.

    The add that widens its product is no epilogue.
    """
    fused, arrays = added(f32[4, 5], f32[5, 1], f32[7])
    assert fits_the_kernel(fused.graph)
    assert reasons(fused, "linear") == {"bias_is_a_vector"}
    got = run(fused.graph, arrays)["y"]
    assert got.shape == (4, 7)
    near(got, judge.relu((arrays["x"] @ arrays["w"]).reshape(4, 1) + arrays["b"]))


def test_trap_06_weights_with_a_batch() -> None:
    """A kernel that takes one matrix multiplies every batch by the weights of the first.

    Batched weights stay a matmul, and the report names the guard.
    """
    fused, arrays = added(f32[3, 4, 5], f32[3, 5, 6], f32[6])
    assert fits_the_kernel(fused.graph)
    assert "weight_is_a_matrix" in reasons(fused, "linear")
    wanted = np.stack([judge.relu(x @ w + arrays["b"]) for x, w in zip(arrays["x"], arrays["w"], strict=True)])
    near(run(fused.graph, arrays)["y"], wanted)


def test_trap_06_operands_of_mixed_dtypes() -> None:
    """Reading an f16 product and an f32 bias as one dtype skips a rounding, or reads bytes as what they are not.

    Mixed operands are refused where they are written, and a cast between product and bias keeps them apart.
    """
    x, w, b = input("x", f16[1, 2]), param("w", f16[2, 1]), param("b", f32[1])
    for mixed in (lambda: x @ param("v", f32[2, 1]), lambda: x @ w + b, lambda: linear(x, w, b)):
        with pytest.raises(TypeRuleError, match="cast"):
            mixed()
    fused = fuse(Graph.of(ops.cast(x @ w, dtype=f32) + b), ALL, always=True).graph
    assert names(fused) == ["matmul", "cast", "add"]
    # 32 * 64 + 1 is 2049, which rounds to 2048 in f16.
    feeds, params = {"x": np.array([[32, 1]], np.float16)}, {"w": np.array([[64], [1]], np.float16)}
    got = evaluate(fused, feeds, params={**params, "b": np.array([0.5], np.float32)})["y"]
    assert got.tolist() == [[2048.5]]


def test_trap_07_a_norm_of_a_value_plus_its_bias() -> None:
    """norm(x + bias[h]) looks like norm(x + residual); a kernel that reads both row by row reads past the bias.

    A vector is no residual; beside a true residual it is the bias of one.
    """
    x, bias, r = input("x", f32[3, 4, 6]), param("b", f32[6]), input("r", f32[3, 4, 6])
    for norm, residual, formula in (
        (layer_norm, residual_layer_norm, judge.layer_norm),
        (rms_norm, residual_rms_norm, judge.rms_norm),
    ):
        for total in (x + bias, bias + x):
            fused = fuse(Graph.of(one(norm.body(total, eps=EPS))), ALL, always=True)
            assert fused.graph.count(residual) == 0
            assert reasons(fused, residual.name) == {"operands_have_one_shape"}
            arrays = numbers(fused.graph)
            near(run(fused.graph, arrays)["y"], formula(arrays["x"] + arrays["b"], EPS))
        both = fuse(Graph.of(one(norm.body(x + bias + r, eps=EPS))), ALL, always=True).graph
        assert both.outputs["y"] is residual(x, r, b=bias, eps=EPS)
        arrays = numbers(both)
        near(run(both, arrays)["y"], formula(arrays["x"] + arrays["b"] + arrays["r"], EPS))


def test_trap_08_a_norm_over_an_axis_that_is_not_the_last() -> None:
    """A rule that finds the ops of a norm and not their axes normalises rows where columns were meant.

    A norm of columns stays as it is written; the matrix is square, so that no shape gives the mistake away.
    """
    x, gain = input("x", f32[6, 6]), param("gain", f32[6])
    rms = x * ops.rsqrt(ops.reduce_mean(x * x, axes=(-2,)) + EPS) * gain
    centred = x - ops.reduce_mean(x, axes=(-2,))
    layer = centred * ops.rsqrt(ops.reduce_mean(centred * centred, axes=(-2,)) + EPS) * gain
    for value, formula in ((rms, judge.rms_norm), (layer, judge.layer_norm)):
        fused = fuse(Graph.of(value), ALL, always=True).graph
        assert fused.count(rms_norm) == fused.count(layer_norm) == 0
        arrays = numbers(fused)
        near(run(fused, arrays)["y"], formula(arrays["x"].T, EPS).T * arrays["gain"])


def test_trap_08_an_axis_counted_from_the_front_after_the_rank_changed() -> None:
    """Axis 1 of a matrix is another axis once a batch stands in front, and a pattern that asks for -1 misses it.

    Axes are counted from the end as soon as they are written: the norm is found, and a batch in front changes nothing.
    """
    x = input("x", f32[4, 5])
    value = x * ops.rsqrt(ops.reduce_mean(x * x, axes=(1,)) + EPS)
    assert fuse(Graph.of(value), ALL).graph.outputs["y"] is rms_norm(x, eps=EPS)
    batched, array = input("x", f32[2, 4, 5]), np.random.default_rng(0).normal(size=(2, 4, 5))
    total = ops.reduce_sum(x, axes=(1,)).with_operands((batched,))
    near(run(Graph.of(total), {"x": array})["y"], np.stack([a.sum(1, keepdims=True) for a in array]))


def test_trap_09_a_gate_of_one_column() -> None:
    """silu(x@gate[k, 1]) * (x@up[k, n]) broadcasts; a kernel that multiplies column by column does not.

    A gate that is narrower than its partner is no swiglu, and the report names the guard.
    """
    x, up, gate = input("x", f32[4, 5]), param("up", f32[5, 6]), param("gate", f32[5, 1])
    for value in (silu(x @ gate) * (x @ up), (x @ up) * silu(x @ gate)):
        fused = fuse(Graph.of(value), ALL, always=True)
        assert fused.graph.count(swiglu) == 0
        assert reasons(fused, "swiglu") == {"weights_are_equally_wide"}
        arrays = numbers(fused.graph)
        row = judge.silu(np.einsum("mk,kn->mn", arrays["x"], arrays["gate"]))
        near(run(fused.graph, arrays)["y"], np.einsum("mk,kn,m->mn", arrays["x"], arrays["up"], row[:, 0]))


def test_trap_10_pieces_that_are_not_the_two_halves_of_the_last_axis() -> None:
    """Two slices of one value are not its halves: thirds, rows, pieces of an odd width, one half twice.

    Only [0, n) and [n, 2n) of a last axis of 2n make a gated product; everything else comes out as it is written.
    """
    y, odd = input("y", f32[6, 6]), input("z", f32[4, 7])

    def gated(x: Value, first: slice, second: slice, axis: int) -> Value:
        pieces = [slice_axis(x, axis=axis, start=s.start, stop=s.stop) for s in (first, second)]
        return pieces[0] * silu(pieces[1])

    cases = [
        (y, slice(0, 2), slice(2, 4), -1),
        (y, slice(2, 4), slice(4, 6), -1),
        (y, slice(0, 3), slice(3, 6), -2),
        (y, slice(0, 3), slice(0, 3), -1),
        (y, slice(3, 6), slice(3, 6), -1),
        (y, slice(1, 4), slice(3, 6), -1),
        (odd, slice(0, 3), slice(3, 6), -1),
        (odd, slice(0, 3), slice(4, 7), -1),
    ]
    for x, first, second, axis in cases:
        fused = fuse(canonicalize(Graph.of(gated(x, first, second, axis))), ALL, always=True).graph
        assert fused.count(gated_product) == 0
        arrays = numbers(fused)
        turned = arrays[x.attrs["name"]].swapaxes(axis, 0)
        near(run(fused, arrays)["y"], (turned[first] * judge.silu(turned[second])).swapaxes(axis, 0))
    halves = fuse(canonicalize(Graph.of(gated(y, slice(0, 3), slice(3, 6), -1))), ALL).graph
    assert halves.outputs["y"] is gated_product(y)


def test_trap_10_two_of_three_joined_weights() -> None:
    """A product with three joined weights has two neighbouring pieces that look like the halves of a wide swiglu.

    The pieces of a three-way concat are no halves; those of a two-way one are.
    """
    x = input("x", f32[4, 5])
    weights = [param(name, f32[5, 6]) for name in ("u", "v", "w")]
    for count in (3, 2):
        wide = x @ ops.concat(*weights[:count], axis=-1)
        value = slice_axis(wide, axis=-1, stop=6) * silu(slice_axis(wide, axis=-1, start=6, stop=12))
        graph = Graph.of(value)
        fused = fuse(graph, ALL, always=True).graph
        assert fused.count(wide_swiglu) == (count == 2)
        arrays = numbers(graph)
        for form in (fused, fuse(canonicalize(graph), ALL, always=True).graph):
            near(run(form, arrays)["y"], arrays["x"] @ arrays["u"] * judge.silu(arrays["x"] @ arrays["v"]))


def test_trap_11_gate_and_up_with_other_readers() -> None:
    """Where gate or up is read elsewhere, swallowing it leaves its reader without it, or computes the matmul twice.

    Every reader gets its value, each matmul is done once, and the report says that the interior is not private.
    """
    x, up, gate = input("x", f32[64, 96]), param("up", f32[96, 80]), param("gate", f32[96, 80])
    u, g = x @ up, x @ gate
    arrays = numbers(Graph.of(u * g))
    n_u, n_g = arrays["x"] @ arrays["up"], arrays["x"] @ arrays["gate"]
    readers = {"up": (ops.exp(u * 0.1), np.exp(n_u * 0.1)), "gate": (ops.tanh(g) - 1.0, np.tanh(n_g) - 1)}
    for chosen in (["up"], ["gate"], ["up", "gate"]):
        graph = Graph.of({"y": u * silu(g), **{name: readers[name][0] for name in chosen}})
        fused = fuse(graph, ALL)
        assert reasons(fused, "swiglu") == {PRIVATE}
        assert sum(name in ("matmul", "linear", "swiglu") for name in names(fused.graph)) == 2
        got = run(fused.graph, arrays)
        near(got["y"], n_u * judge.silu(n_g))
        for name in chosen:
            near(got[name], readers[name][1])


def angles(count: int, width: int, offset: float, head_dim: int) -> tuple[Value, Value]:
    """The cosines and sines of rope, spelled from positions that start at an offset."""
    rates = constant(np.array([100.0 ** (-2 * i / head_dim) for i in range(width // 2)]), f32)
    turns = ops.unsqueeze(ops.cast(ops.iota(size=count), dtype=f32) + offset, axes=(-1,)) * rates
    joined = ops.concat(turns, turns, axis=-1)
    return ops.cos(joined), ops.sin(joined)


def rotated(x: judge.Array, offset: float, head_dim: int) -> judge.Array:
    """Rope as a product of complex numbers: feature i and the one half an axis on are one number."""
    half: int = x.shape[-1] // 2
    turns = np.array([[(s + offset) / 100.0 ** (2 * i / head_dim) for i in range(half)] for s in range(x.shape[-2])])
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * turns)
    return np.concatenate([turned.real, turned.imag], -1)


def test_trap_12_queries_and_keys_that_are_rotated_differently() -> None:
    """A rule that finds rope on both sides and takes the angles of one rotates the keys by those of the queries.

    Only the same angles make a rope_attention; pairs that differ in offset or head_dim alone stay apart, and right.
    """
    vocabulary = (softmax, scores, rope, partial_rope, attention, rope_attention)
    q, k, v = (input(name, f32[2, 3, 5, 8]) for name in "qkv")
    for on_q, on_k in (((0.0, 8), (0.0, 8)), ((0.0, 8), (3.0, 8)), ((0.0, 8), (0.0, 16)), ((1.0, 16), (2.0, 8))):
        turned_q, turned_k = one(rope.body(q, *angles(5, 8, *on_q))), one(rope.body(k, *angles(5, 8, *on_k)))
        value = one(attention.body(turned_q, turned_k, v, scale=0.5))
        fused = fuse(Graph.of(value), vocabulary, always=True).graph
        assert fused.count(rope_attention) == (on_q == on_k)
        arrays = numbers(fused)
        left, right = rotated(arrays["q"], *on_q), rotated(arrays["k"], *on_k)
        weights = np.exp(0.5 * np.einsum("bhid,bhjd->bhij", left, right))
        wanted = np.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdims=True), arrays["v"])
        near(run(fused, arrays)["y"], wanted)


BLOCK = (softmax, scores, linear, rope, partial_rope, attention, rope_attention)


def block(x: Value, w: Value, wo: Value, mask: Value | None = None, *, parts: int = 3) -> Value:
    """Attention of two heads with its projections, spelled out; queries, keys and values are the first parts."""
    joined = x @ w
    q, k, v = (split_heads(ops.part(joined, axis=-1, index=i, parts=parts), 2) for i in range(3))
    found = (q @ ops.permute(k, order=(-1, -2))) * 0.5
    return merge_heads(one(softmax.body(found if mask is None else found + mask)) @ v) @ wo


def block_by_hand(arrays: judge.Arrays, parts: int = 3) -> judge.Array:
    """The same head by head; a mask has the axes [batch, 1, 1, keys]."""
    pieces = np.split(arrays["x"] @ arrays["w"], parts, -1)[:3]
    heads: list[judge.Array] = []
    for q, k, v in zip(*(np.split(piece, 2, -1) for piece in pieces), strict=True):
        weights = np.exp(0.5 * np.einsum("...id,...jd->...ij", q, k))
        if "mask" in arrays:
            weights = weights * np.exp(arrays["mask"][:, 0])
        heads.append(weights / weights.sum(-1, keepdims=True) @ v)
    return np.concatenate(heads, -1) @ arrays["wo"]


def test_trap_13_blocks_of_other_ranks_masks_and_widths() -> None:
    """Rules of attention with its projections that count ops and ask for no shapes fuse what no kernel can read.

    Rows without a batch, weights with one, a mask that stretches the batch and a projection that is not three times
    as wide as x: attention is found where its operands fit, and the numbers are those by hand.
    """
    cases = [
        (f32[2, 5, 8], f32[8, 24], f32[8, 8], f32[2, 1, 1, 5], 3),
        (f32[5, 8], f32[8, 24], f32[8, 8], None, 3),
        (f32[2, 5, 8], f32[2, 8, 24], f32[8, 8], None, 3),
        (f32[2, 5, 8], f32[8, 24], f32[2, 8, 8], None, 3),
        (f32[2, 5, 8], f32[8, 48], f32[16, 8], None, 3),
        (f32[2, 5, 8], f32[8, 32], f32[8, 8], None, 4),
        (f32[1, 5, 8], f32[8, 24], f32[8, 8], f32[2, 1, 1, 5], 3),
    ]
    for x, w, wo, mask, parts in cases:
        added = None if mask is None else input("mask", mask)
        value = block(input("x", x), param("w", w), param("wo", wo), added, parts=parts)
        fused = fuse(Graph.of(value), BLOCK, always=True).graph
        arrays = numbers(fused)
        near(run(fused, arrays)["y"], block_by_hand(arrays, parts))


@pytest.mark.slow
def test_trap_14_a_tiny_input_beside_does_not_switch_block_fusion_on() -> None:
    """A rule for few rows that looks at the smallest input of a graph is switched on by a flag of one element.

    The rows that count are those of the block's own input: a flag beside changes nothing, and neither does a large
    input beside a small block.
    """
    w, wo = param("w", f32[64, 192]), param("wo", f32[64, 64])
    flag, large = input("flag", f32[1]), input("large", f32[64, 64, 64])
    for rows in (512, 16):
        value = block(input("x", f32[rows // 16, 16, 64]), w, wo)
        alone = names(fuse(Graph.of(value), BLOCK, machine=CPU.machine).graph)
        assert "attention" in alone
        for beside in (flag, large):
            outputs = {"flag": ops.exp(beside), "y": value}
            fused = fuse(Graph.of(outputs), BLOCK, machine=CPU.machine)
            assert sorted(names(fused.graph)) == sorted([*alone, "exp"])
            arrays = {name: array * 0.125 for name, array in numbers(fused.graph).items()}
            near(run(fused.graph, arrays)["y"], block_by_hand(arrays))
