"""rope_attention: both sides turned by the same angles, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input
from dovetail.library.attention import attention
from dovetail.library.partial_rope import partial_rope
from dovetail.library.rope import rope
from dovetail.library.rope_attention import rope_attention
from tests.library.attending import INF, angles, attend, causal, feeds, found, near, recognised, rotate, run

B, H, S, D = 2, 4, 5, 8
Q, K, V = (input(n, f32[B, H, S, D]) for n in "qkv")
COS, SIN = input("cos", f32[S, D]), input("sin", f32[S, D])


def plain(q: Value, k: Value, v: Value) -> Value:
    scores = (q @ ops.permute(k, order=(-1, -2))) * 0.25
    seen = ops.less_equal(ops.iota(size=S), ops.unsqueeze(ops.iota(size=S), axes=(-1,)))
    raised = ops.where(seen, scores, -INF)
    raised = ops.exp(raised - ops.reduce_max(raised, axes=(-1,)))
    return (raised / ops.reduce_sum(raised, axes=(-1,))) @ v


def test_queries_and_keys_are_turned_inside() -> None:
    spelled = plain(rope(Q, COS, SIN), rope(K, COS, SIN), V)
    expected = rope_attention(Q, K, V, COS, SIN, scale=0.25, causal=True, fill=-INF)
    assert found(spelled, "rope_attention") is expected
    cos, sin = angles(S, D)
    arrays = feeds(recognised(spelled).graph, cos=cos, sin=sin)
    wanted = attend(
        rotate(arrays["q"], cos, sin), rotate(arrays["k"], cos, sin), arrays["v"], scale=0.25, keep=causal(S, S)
    )
    near(run(recognised(spelled).graph, arrays)["y"], wanted)


def test_a_part_of_each_head_is_turned_inside() -> None:
    cos, sin = input("cos", f32[S, 4]), input("sin", f32[S, 4])
    spelled = plain(partial_rope(Q, cos, sin, rotated=4), partial_rope(K, cos, sin, rotated=4), V)
    value = found(spelled, "rope_attention")
    assert value is rope_attention(Q, K, V, cos, sin, rotated=4, scale=0.25, causal=True, fill=-INF)


def test_shared_heads_are_turned_before_they_are_repeated() -> None:
    k, v = input("k", f32[B, 2, S, D]), input("v", f32[B, 2, S, D])
    spelled = attention.body(rope(Q, COS, SIN), rope(k, COS, SIN), v, groups=2, scale=0.25)
    assert isinstance(spelled, Value)
    assert found(spelled, "rope_attention") is rope_attention(Q, k, v, COS, SIN, groups=2, scale=0.25)


@pytest.mark.parametrize("other", ("offset", "sine", "form", "width", "one side"))
def test_pairs_that_differ_stay_apart(other: str) -> None:
    """Another offset, another sine, another pairing, another width, or only one side turned."""
    late = input("late", f32[S, D])
    cos, sin = angles(S, D)
    later = angles(S, D, offset=3)
    narrow = input("narrow_cos", f32[S, 4]), input("narrow_sin", f32[S, 4])
    keys = {
        "offset": rope(K, late, SIN),
        "sine": rope(K, COS, late),
        "form": rope(K, COS, SIN, form="interleaved"),
        "width": partial_rope(K, *narrow, rotated=4),
        "one side": K,
    }[other]
    result = recognised(plain(rope(Q, COS, SIN), keys, V))
    assert all(v.op is not rope_attention for v in result.graph.values)
    assert any(v.op is attention for v in result.graph.values)
    given = {"cos": cos, "sin": sin, "late": later[1 if other == "sine" else 0]}
    given |= dict(zip(("narrow_cos", "narrow_sin"), angles(S, 4), strict=True))
    arrays = feeds(result.graph, **given)
    k = arrays["k"]
    turned = {
        "offset": lambda: rotate(k, later[0], sin),
        "sine": lambda: rotate(k, cos, later[1]),
        "form": lambda: rotate(k, cos, sin, neighbours=True),
        "width": lambda: np.concatenate([rotate(k[..., :4], *angles(S, 4)), k[..., 4:]], axis=-1),
        "one side": lambda: k,
    }[other]()
    wanted = attend(rotate(arrays["q"], cos, sin), turned, arrays["v"], scale=0.25, keep=causal(S, S))
    near(run(result.graph, arrays)["y"], wanted)
