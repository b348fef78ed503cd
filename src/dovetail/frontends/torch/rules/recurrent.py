"""LSTM, GRU and plain recurrent layers as scans over their steps."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.frontends.shared.recurrence import Activation, Cell, GruCell, LstmCell, Pass, RnnCell, run_pass
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import rule
from dovetail.ir.value import Value
from dovetail.ops import build


@dataclass(frozen=True, slots=True)
class _Layers:
    """The layers of one call: their weights in torch's order, and how the sequence is laid out."""

    x: Value
    """[steps, batch, input]."""
    weights: Sequence[Value]
    biased: bool
    count: int
    directions: int

    def of(self, layer: int, direction: int) -> tuple[Value, Value, Value | None, Value | None]:
        """The weights of the input and of the state, and their biases."""
        each = 4 if self.biased else 2
        start = (layer * self.directions + direction) * each
        found = self.weights[start : start + each]
        if len(self.weights) != each * self.count * self.directions:
            raise ValueError("a recurrent layer with projections")
        return (found[0], found[1], found[2], found[3]) if self.biased else (found[0], found[1], None, None)


def _turned(w: Value) -> Value:
    return ops.permute(w, order=(-1, -2))


def _reordered(w: Value, order: Sequence[int]) -> Value:
    """Gates along the first axis in another order."""
    parts = build.split_axis(w, [w.shape[0] // len(order)] * len(order), axis=0)
    return ops.concat(*(parts[i] for i in order), axis=-w.rank)


def _run(n: Node, layers: _Layers, states: Sequence[Value], kind: str, activation: Activation) -> Made:
    """Every layer and direction; the output of one layer is the input of the next."""
    x = layers.x
    last: list[list[Value]] = [[] for _ in states]
    for layer in range(layers.count):
        outputs: list[Value] = []
        for direction in range(layers.directions):
            at = layer * layers.directions + direction
            first = tuple(build.select(s, axis=0, index=at) for s in states)
            one, cell = _pass(x, first, layers.of(layer, direction), kind, activation, reverse=bool(direction))
            hidden, after = run_pass(one, cell)
            outputs.append(hidden)
            for held, state in zip(last, after, strict=True):
                held.append(state)
        x = outputs[0] if len(outputs) == 1 else ops.concat(*outputs, axis=-1)
    return (x, *(build.stack(held, axis=0) for held in last))


def _pass(
    x: Value,
    states: tuple[Value, ...],
    weights: tuple[Value, Value, Value | None, Value | None],
    kind: str,
    activation: Activation,
    *,
    reverse: bool,
) -> tuple[Pass, Cell]:
    w_in, w_state, b_in, b_state = weights
    if kind == "lstm":
        # torch has i, f, g, o; the cell takes i, o, f, g.
        w_in, w_state = (_reordered(w, (0, 3, 1, 2)) for w in (w_in, w_state))
        bias = None if b_in is None or b_state is None else _reordered(b_in + b_state, (0, 3, 1, 2))
        projected = _projected(x, w_in, bias)
        acts = (ops.sigmoid, ops.tanh, ops.tanh)
        return Pass(projected, states, (_turned(w_state),), acts, reverse), LstmCell()
    if kind == "gru":
        # torch has r, z, n; the cell takes z, r, n, and the state times its weights before the reset.
        w_in, w_state = (_reordered(w, (1, 0, 2)) for w in (w_in, w_state))
        hidden = w_state.shape[-1]
        both, own = build.split_axis(w_state, (hidden * 2, hidden), axis=0)
        bias, late = None, build.zeros((hidden,), x.dtype)
        if b_in is not None and b_state is not None:
            b_in, b_state = _reordered(b_in, (1, 0, 2)), _reordered(b_state, (1, 0, 2))
            early, late = build.split_axis(b_state, (hidden * 2, hidden), axis=0)
            bias = b_in + ops.concat(early, build.zeros((hidden,), x.dtype), axis=-1)
        projected = _projected(x, w_in, bias)
        found = Pass(projected, states, (_turned(both), _turned(own)), (ops.sigmoid, ops.tanh), reverse, more=(late,))
        return found, GruCell(linear_first=True)
    bias = None if b_in is None or b_state is None else b_in + b_state
    return Pass(_projected(x, w_in, bias), states, (_turned(w_state),), (activation,), reverse), RnnCell()


def _projected(x: Value, weight: Value, bias: Value | None) -> Value:
    y = x @ _turned(weight)
    return y if bias is None else y + bias


def _layered(
    n: Node,
    x: Value,
    states: Sequence[Value],
    params: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    kind: str,
    activation: Activation = ops.tanh,
) -> Made:
    if dropout and train:
        raise n.unsupported(f"dropout of {dropout} in training", hint="call module.eval() first")
    alone = x.rank == 2
    if alone:
        x, states = build.expand_dims(x, 1), [build.expand_dims(s, 1) for s in states]
    steps = build.swap(x, 0, 1) if batch_first and not alone else x
    layers = _Layers(steps, params, has_biases, num_layers, 2 if bidirectional else 1)
    y, *last = _run(n, layers, states, kind, activation)
    assert y is not None
    if alone:
        return (build.squeeze_dims(y, 1), *(build.squeeze_dims(s, 1) for s in last if s is not None))
    return (build.swap(y, 0, 1) if batch_first else y, *last)


@rule("lstm.input")
def lstm(
    n: Node,
    x: Value,
    hx: Sequence[Value],
    params: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Made:
    """Layers of LSTM cells: the hidden state of every step, and the last states."""
    return _layered(n, x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, "lstm")


@rule("gru.input")
def gru(
    n: Node,
    x: Value,
    hx: Value,
    params: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Made:
    """Layers of GRU cells: the hidden state of every step, and the last states."""
    return _layered(n, x, [hx], params, has_biases, num_layers, dropout, train, bidirectional, batch_first, "gru")


@rule("rnn_tanh.input", "rnn_relu.input")
def rnn(
    n: Node,
    x: Value,
    hx: Value,
    params: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Made:
    """Plain recurrent layers: the hidden state of every step, and the last states."""
    act = ops.tanh if "tanh" in n.op_type else ops.relu
    return _layered(n, x, [hx], params, has_biases, num_layers, dropout, train, bidirectional, batch_first, "rnn", act)
