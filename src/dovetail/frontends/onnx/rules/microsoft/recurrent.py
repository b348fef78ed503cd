"""Recurrent networks whose weights are quantised, and whose inputs and states are for each product."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.onnx.rules.microsoft.activations import MICROSOFT
from dovetail.frontends.onnx.rules.microsoft.quantised import scaled_product
from dovetail.frontends.shared.quantisation import dynamic
from dovetail.frontends.shared.recurrence import Layer, LstmCell, Pass, parts
from dovetail.frontends.shared.rule import Made
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(
    n: Node,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None,
    sequence_lens: Value | None,
    initial_h: Value | None,
    initial_c: Value | None,
    p: Value | None,
    w_scale: Value,
    w_zero_point: Value,
    r_scale: Value,
    r_zero_point: Value,
    *,
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    activations: tuple[str, ...] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: bool = False,
) -> Made:
    """LSTM with weights of 8 bits, and with inputs and hidden states quantised by their range before each product."""
    if sequence_lens is not None:
        # The range of a state takes in rows that have ended, and onnxruntime and we keep different numbers there.
        raise n.unsupported("sequence_lens", hint="run sequences of one length together")
    layer = Layer.of(n, x, direction, 0, None)
    _check(n, layer, w, r, hidden_size, clip)
    chosen = layer.activations(activations, ("Sigmoid", "Tanh", "Tanh"), activation_alpha, activation_beta)
    q, scale, zero = dynamic(layer.x)

    def recur(state: Value, weights: Sequence[Value]) -> Value:
        steps, step, lowest = dynamic(state)
        return scaled_product(n, steps, weights[0], step, weights[1], lowest, weights[2], None)

    # The states are as wide as r has rows.
    wide = build.swap(r, -1, -2)
    hidden, cell = layer.initial(initial_h, wide), layer.initial(initial_c, wide)
    passes: list[Pass] = []
    for d, reverse in enumerate(layer.directions):
        entering, recurring = (
            tuple(build.select(v, axis=0, index=d) for v in group)
            for group in ((w, w_scale, w_zero_point), (r, r_scale, r_zero_point))
        )
        projected = scaled_product(n, q, entering[0], scale, entering[1], zero, entering[2], _bias(b, d))
        peepholes = () if p is None else (build.select(p, axis=0, index=d),)
        passes.append(Pass(projected, (hidden[d], cell[d]), recurring, chosen[d], reverse, peepholes, recur))
    return layer.run(passes, LstmCell(clip, input_forget))


def _check(n: Node, layer: Layer, w: Value, r: Value, hidden_size: int | None, clip: float | None) -> None:
    """Weights are [directions, features, gates], the other way round than those of LSTM."""
    directions = len(layer.directions)
    if w.rank != 3 or r.rank != 3 or (w.shape[0], r.shape[0]) != (directions, directions):
        raise n.malformed(f"weights {w.type} and {r.type} for {directions} directions")
    size = r.shape[1]
    if (w.shape[2], r.shape[2]) != (size * 4, size * 4) or hidden_size not in (None, 0, size):
        raise n.malformed(f"weights {w.type} and {r.type} for gates of {hidden_size or size}")
    if clip is not None and not clip > 0:
        raise n.malformed(f"clip is {clip}", hint="it is above 0")


def _bias(b: Value | None, d: int) -> Value | None:
    """Both biases of a direction as one."""
    if b is None:
        return None
    first, second = parts(build.select(b, axis=0, index=d), 2)
    return first + second
