"""decoder_layer: a whole pre-norm layer, as Llama has it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from dovetail.declare import HANDED_ON, Cost, UnwrittenError, fused_op
from dovetail.ir.value import Value
from dovetail.library.activation import Gate
from dovetail.library.attention import Filled
from dovetail.library.attention_block import attention_block
from dovetail.library.matmul_add import matmul_add
from dovetail.library.norms import Precision
from dovetail.library.panels import in_panels
from dovetail.library.residual_rms_norm import residual_rms_norm
from dovetail.library.rms_norm import rms_norm
from dovetail.library.scores import Scaled
from dovetail.library.softmax import Empty, Flag
from dovetail.library.swiglu import swiglu


@fused_op(
    shapes="x[m, s, groups*h*2*d] normed[m, s, groups*h*2*d] wq[groups*h*2*d, groups*h*2*d] wk[groups*h*2*d, h*2*d] "
    "wv[groups*h*2*d, h*2*d] wo[groups*h*2*d, groups*h*2*d] gain1[groups*h*2*d] gain2[groups*h*2*d] "
    "gain3[groups*h*2*d] up[groups*h*2*d, n] gate[groups*h*2*d, n] down[n, groups*h*2*d] cos[s, 2*d] sin[s, 2*d] "
    "mask[m, 1, 1, s] keep:bool[m, 1, 1, s] fill=-inf heads=groups*h kv_heads=h",
    stage="block",
    together=("gain1 eps1", "gain3 eps3"),
)
def decoder_layer(
    x: Value,
    wq: Value,
    wk: Value,
    wv: Value,
    wo: Value,
    gain2: Value,
    up: Value,
    gate: Value,
    down: Value,
    cos: Value,
    sin: Value,
    gain1: Value | None = None,
    normed: Value | None = None,
    gain3: Value | None = None,
    mask: Value | None = None,
    keep: Value | None = None,
    *,
    heads: int,
    kv_heads: int,
    eps2: float,
    eps1: float | None = None,
    eps3: float | None = None,
    ends: Literal["sum", "norm", "norm_and_sum"] = "sum",
    act: Annotated[Gate, HANDED_ON] = "silu",
    precision: Annotated[Precision, HANDED_ON] = "own",
    scale: Annotated[float | None, HANDED_ON] = None,
    scaled: Annotated[Scaled, HANDED_ON] = "product",
    softcap: Annotated[float | None, HANDED_ON] = None,
    groups: Annotated[int | None, HANDED_ON] = None,
    causal: Annotated[Flag, HANDED_ON] = False,
    window: Annotated[int | None, HANDED_ON] = None,
    fill: Annotated[float | None, HANDED_ON] = None,
    filled: Annotated[Filled, HANDED_ON] = "last",
    zero_unseen: Annotated[Flag, HANDED_ON] = False,
    empty: Annotated[Empty, HANDED_ON] = "nan",
    wide: Annotated[Flag, HANDED_ON] = False,
) -> Value | tuple[Value, ...]:
    """Attention and a gated feed-forward, each of a normalised input and added to it as it was: one kernel.

    Norms belong to the add before them: where layers follow each other, one takes what the last one has `normed`, and
    ends with the norm of the next one by its `gain3`.
    """
    if (gain1 is None) == (normed is None):
        raise UnwrittenError("a layer with and without its first norm", hint="pass either gain1 or normed")
    if (gain3 is None) != (ends == "sum"):
        raise UnwrittenError("a layer that ends with a norm without a gain", hint="pass gain3, or ends='sum'")
    start = normed if normed is not None else rms_norm(x, gain1, eps=_its_own(eps1), precision=precision)
    options: dict[str, Any] = {
        "scale": scale,
        "scaled": scaled,
        "softcap": softcap,
        "groups": groups,
        "causal": causal,
        "window": window,
        "fill": fill,
        "filled": filled,
        "zero_unseen": zero_unseen,
        "empty": empty,
        "wide": wide,
    }
    attended = attention_block(
        start, wq, wo, wk, wv, None, None, None, None, cos, sin, mask, keep, heads=heads, kv_heads=kv_heads, **options
    )
    added = residual_rms_norm(x, attended, gain2, eps=eps2, precision=precision, keep_sum=True)
    hidden = swiglu(added[0], up, gate, act=act)
    if ends == "sum":
        return matmul_add(hidden, down, added[1])
    both = ends == "norm_and_sum"
    result = residual_rms_norm(added[1], hidden @ down, gain3, eps=_its_own(eps3), precision=precision, keep_sum=both)
    return (result[0], result[1]) if both else result


def _its_own(eps: float | None) -> float:
    """The eps of a norm that is there."""
    if eps is None:
        raise UnwrittenError("a norm without an eps", hint="pass eps1 with gain1, and eps3 with gain3")
    return eps


@decoder_layer.cost
def one_panel_at_a_time(**call: Any) -> Cost:
    """Few rows gain from staying in one kernel; many are better served one step at a time."""
    return in_panels(decoder_layer, call)
