"""transformer_layer: a whole post-norm layer, as BERT has it."""

from __future__ import annotations

from typing import Annotated, Any

from dovetail.declare import HANDED_ON, Cost, fused_op
from dovetail.ir.value import Value
from dovetail.library.activation import Activation
from dovetail.library.attention import Filled
from dovetail.library.attention_block import attention_block
from dovetail.library.linear import linear
from dovetail.library.norms import Precision
from dovetail.library.panels import in_panels
from dovetail.library.projection import each_has_one, projected
from dovetail.library.residual_layer_norm import residual_layer_norm
from dovetail.library.scores import Scaled
from dovetail.library.softmax import Empty, Flag


@fused_op(
    shapes="x[m, s, h*d] mask[m, 1, 1, s] keep:bool[m, 1, 1, s] fill=-inf heads=h kv_heads=h "
    "wk[h*d, h*d] wv[h*d, h*d] bk[h*d] bv[h*d] w[h*d, h*d] b[h*d] w[h*d, 3*h*d] b[3*h*d] wo[h*d, h*d] bo[h*d] "
    "gain1[h*d] bias1[h*d] up[h*d, n] up_bias[n] down[n, h*d] down_bias[h*d] gain2[h*d] bias2[h*d]",
    stage="block",
    together=("b bo bias1 up_bias down_bias bias2", "wk wv kv_heads", "bk bv"),
)
def transformer_layer(
    x: Value,
    w: Value,
    wo: Value,
    gain1: Value,
    up: Value,
    down: Value,
    gain2: Value,
    b: Value | None = None,
    bo: Value | None = None,
    bias1: Value | None = None,
    up_bias: Value | None = None,
    down_bias: Value | None = None,
    bias2: Value | None = None,
    wk: Value | None = None,
    wv: Value | None = None,
    bk: Value | None = None,
    bv: Value | None = None,
    mask: Value | None = None,
    keep: Value | None = None,
    *,
    heads: int,
    kv_heads: int | None = None,
    eps1: float,
    eps2: float,
    act: Annotated[Activation, HANDED_ON] = "gelu",
    precision: Annotated[Precision, HANDED_ON] = "own",
    scale: Annotated[float | None, HANDED_ON] = None,
    scaled: Annotated[Scaled, HANDED_ON] = "product",
    causal: Annotated[Flag, HANDED_ON] = False,
    fill: Annotated[float | None, HANDED_ON] = None,
    filled: Annotated[Filled, HANDED_ON] = "last",
    zero_unseen: Annotated[Flag, HANDED_ON] = False,
    empty: Annotated[Empty, HANDED_ON] = "nan",
    wide: Annotated[Flag, HANDED_ON] = False,
) -> Value:
    """Attention and a feed-forward, each added to its input and normalised: one kernel.

    w holds the columns of queries, keys and values side by side, or those of queries where keys and values have
    weights of their own.
    """
    each_has_one(wk, b, bk)
    options: dict[str, Any] = {
        "scale": scale,
        "scaled": scaled,
        "causal": causal,
        "fill": fill,
        "filled": filled,
        "zero_unseen": zero_unseen,
        "empty": empty,
        "wide": wide,
    }
    attended = attention_block(
        x, w, wo, wk, wv, b, bk, bv, bo, None, None, mask, keep, heads=heads, kv_heads=kv_heads, **options
    )
    middle = residual_layer_norm(attended, x, gain1, bias1, eps=eps1, precision=precision)
    hidden = linear(middle, up, up_bias, act=act)
    return residual_layer_norm(projected(hidden, down, down_bias), middle, gain2, bias2, eps=eps2, precision=precision)


@transformer_layer.spelling
def inputs_first(*operands: Any, **call: Any) -> Value:
    """The residual is the first operand of its adds."""
    return _inputs_first(**call)


def _inputs_first(
    *,
    x: Value,
    gain1: Value,
    up: Value,
    down: Value,
    gain2: Value,
    bias1: Value | None,
    up_bias: Value | None,
    down_bias: Value | None,
    bias2: Value | None,
    eps1: float,
    eps2: float,
    act: Activation,
    precision: Precision,
    **block: Any,
) -> Value:
    each_has_one(block["wk"], block["b"], block["bk"])
    middle = residual_layer_norm(x, attention_block(x, **block), gain1, bias1, eps=eps1, precision=precision)
    hidden = linear(middle, up, up_bias, act=act)
    return residual_layer_norm(middle, projected(hidden, down, down_bias), gain2, bias2, eps=eps2, precision=precision)


@transformer_layer.cost
def one_panel_at_a_time(**call: Any) -> Cost:
    """Few rows gain from staying in one kernel; many are better served one step at a time."""
    return in_panels(transformer_layer, call)
