"""Recurrent networks: all steps are projected at once, and a scan goes over them."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.shared.recurrence import GruCell, Layer, LstmCell, Pass, RnnCell
from dovetail.frontends.shared.rule import Made
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("LSTM")
def lstm(
    n: Node,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    initial_c: Value | None = None,
    p: Value | None = None,
    *,
    activations: tuple[str, ...] = (),
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: bool = False,
    layout: int = 0,
    output_sequence: bool = True,
) -> Made:
    """A long short-term memory over a sequence: all hidden states, the last one, and the last cell."""
    layer = Layer.of(n, x, direction, layout, sequence_lens)
    _check(n, layer, w, r, 4, hidden_size, clip)
    chosen = layer.activations(activations, ("Sigmoid", "Tanh", "Tanh"), activation_alpha, activation_beta)
    hidden, cell = layer.initial(initial_h, r), layer.initial(initial_c, r)
    passes: list[Pass] = []
    for d, reverse in enumerate(layer.directions):
        projected = _biased(layer.x @ _weights(w, d), b, d)
        peepholes = () if p is None else (build.select(p, axis=0, index=d),)
        passes.append(Pass(projected, (hidden[d], cell[d]), (_weights(r, d),), chosen[d], reverse, peepholes))
    return layer.run(passes, LstmCell(clip, input_forget))


@rule("GRU")
def gru(
    n: Node,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    activations: tuple[str, ...] = (),
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: bool = False,
    output_sequence: bool = True,
) -> Made:
    """Gated recurrent units over a sequence: all hidden states, and the last one."""
    layer = Layer.of(n, x, direction, layout, sequence_lens)
    _check(n, layer, w, r, 3, hidden_size, clip)
    chosen = layer.activations(activations, ("Sigmoid", "Tanh"), activation_alpha, activation_beta)
    states = layer.initial(initial_h, r)
    size = r.shape[-1]
    passes: list[Pass] = []
    for d, reverse in enumerate(layer.directions):
        both, own = build.split_axis(_weights(r, d), (size * 2, size), axis=-1)
        projected = layer.x @ _weights(w, d)
        more: tuple[Value, ...] = ()
        if linear_before_reset:
            # The bias of h goes with the state into the reset, and not with the input.
            zeros = build.zeros((size,), x.dtype)
            more = (zeros,)
            if b is not None:
                first, second = build.split_axis(build.select(b, axis=0, index=d), (size * 3, size * 3), axis=-1)
                gates, bias = build.split_axis(second, (size * 2, size), axis=-1)
                projected, more = projected + (first + ops.concat(gates, zeros, axis=-1)), (bias,)
        else:
            projected = _biased(projected, b, d)
        passes.append(Pass(projected, (states[d],), (both, own), chosen[d], reverse, more))
    return layer.run(passes, GruCell(clip, linear_before_reset))


@rule("RNN")
def rnn(
    n: Node,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    activations: tuple[str, ...] = (),
    activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    output_sequence: bool = True,
) -> Made:
    """A plain recurrent layer over a sequence: all hidden states, and the last one."""
    layer = Layer.of(n, x, direction, layout, sequence_lens)
    _check(n, layer, w, r, 1, hidden_size, clip)
    chosen = layer.activations(activations, ("Tanh",), activation_alpha, activation_beta)
    states = layer.initial(initial_h, r)
    passes = [
        Pass(_biased(layer.x @ _weights(w, d), b, d), (states[d],), (_weights(r, d),), chosen[d], reverse)
        for d, reverse in enumerate(layer.directions)
    ]
    return layer.run(passes, RnnCell(clip))


def _check(n: Node, layer: Layer, w: Value, r: Value, gates: int, hidden_size: int | None, clip: float | None) -> None:
    directions = len(layer.directions)
    if w.rank != 3 or r.rank != 3 or w.shape[0] != directions or r.shape[0] != directions:
        raise n.malformed(f"weights {w.tensor} and {r.tensor} for {directions} directions")
    size = r.shape[-1]
    if (w.shape[1], r.shape[1]) != (size * gates, size * gates) or hidden_size not in (None, 0, size):
        raise n.malformed(f"weights {w.tensor} and {r.tensor} for {gates} gates of {hidden_size or size}")
    if clip is not None and not clip > 0:
        raise n.malformed(f"clip is {clip}", hint="it is above 0")


def _weights(w: Value, d: int) -> Value:
    """The weights of a direction, [in, out]."""
    return build.swap(build.select(w, axis=0, index=d), -1, -2)


def _biased(projected: Value, b: Value | None, d: int) -> Value:
    """Plus both biases of a direction."""
    if b is None:
        return projected
    size = projected.shape[-1]
    first, second = build.split_axis(build.select(b, axis=0, index=d), (size, size), axis=-1)
    return projected + (first + second)
