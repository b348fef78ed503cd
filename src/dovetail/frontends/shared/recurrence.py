"""What recurrent operators share: one direction of one layer as a scan over the steps, its cells and activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.frontends.shared.site import Site
from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.ops import build

Activation = Callable[[Value], Value]
Recurrence = Callable[[Value, Sequence[Value]], Value]
"""A state times its weights: [batch, gates * hidden] from [batch, hidden]."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One direction of a layer; inside the scan, one step of it."""

    projected: Value
    """The input times its weights, with biases: [steps, batch, gates * hidden]; inside, [batch, gates * hidden]."""
    states: tuple[Value, ...]
    """The states before, each [batch, hidden]; the hidden one first."""
    weights: tuple[Value, ...]
    """What `recur` reads in addition to the state."""
    activations: tuple[Activation, ...]
    reverse: bool = False
    more: tuple[Value, ...] = ()
    """What else the cell reads: peepholes, or a bias."""
    recur: Recurrence = lambda state, weights: state @ weights[0]


Cell = Callable[[Pass], tuple[Value, ...]]
"""The states after a step."""


def run_pass(one: Pass, cell: Cell, mask: Value | None = None) -> tuple[Value, tuple[Value, ...]]:
    """The hidden state of every step, [steps, batch, hidden], and the states after the last.

    Steps where the mask [steps, batch, 1] does not hold change no state, and their output is 0.
    """
    count, weights = len(one.states), len(one.weights)
    masks = () if mask is None else (mask,)

    def body(*slots: Value) -> tuple[Value, ...]:
        states, projected = slots[:count], slots[count]
        read = slots[count + 1 + len(masks) :]
        after = cell(
            replace(one, projected=projected, states=states, weights=read[:weights], more=read[weights:]),
        )
        if mask is None:
            return (*after, after[0])
        inside = slots[count + 1]
        kept = [ops.where(inside, new, old) for new, old in zip(after, states, strict=True)]
        return (*kept, ops.where(inside, after[0], leaf.scalar(0, after[0].dtype)))

    captures = (*one.weights, *one.more)
    found = ops.scan(body, one.states, [one.projected, *masks], captures, reverse=one.reverse)
    return found.outputs[0], found.carries


@dataclass(frozen=True, slots=True)
class LstmCell:
    """A step of an LSTM; its gates are in the order i, o, f, c, and `more` is its peepholes in the order i, o, f.

    Only what enters the gates is clipped, as onnxruntime has it; the cell is not.
    """

    clip: float | None = None
    couples: bool = False
    """Whether as much is forgotten as is let in."""

    def __call__(self, step: Pass) -> tuple[Value, ...]:
        h, c = step.states
        f, g, act = step.activations
        i_, o_, f_, c_ = parts(step.projected + step.recur(h, step.weights), 4)
        at_i, at_o, at_f = parts(step.more[0], 3) if step.more else (None, None, None)
        entering = f(clipped(_peeped(i_, at_i, c), self.clip))
        kept = 1.0 - entering if self.couples else f(clipped(_peeped(f_, at_f, c), self.clip))
        cell = kept * c + entering * g(clipped(c_, self.clip))
        return f(clipped(_peeped(o_, at_o, cell), self.clip)) * act(cell), cell


def _peeped(gate: Value, weight: Value | None, cell: Value) -> Value:
    return gate if weight is None else gate + weight * cell


@dataclass(frozen=True, slots=True)
class GruCell:
    """A step of a GRU; its gates are in the order z, r, h, its weights are those of z and r, and of h."""

    clip: float | None = None
    linear_first: bool = False
    """Whether the state is multiplied by its weights before it is reset; `more` is the bias of that product."""

    def __call__(self, step: Pass) -> tuple[Value, ...]:
        (h,), (f, g), (both, own) = step.states, step.activations, step.weights
        size = h.shape[-1]
        x_zr, x_h = build.split_axis(step.projected, (size * 2, size), axis=-1)
        z, r = (f(clipped(v, self.clip)) for v in parts(x_zr + step.recur(h, [both]), 2))
        if self.linear_first:
            (bias,) = step.more
            candidate = r * (step.recur(h, [own]) + bias)
        else:
            candidate = step.recur(r * h, [own])
        new = g(clipped(x_h + candidate, self.clip))
        return ((1.0 - z) * new + z * h,)


@dataclass(frozen=True, slots=True)
class RnnCell:
    """A step of a plain recurrent layer."""

    clip: float | None = None

    def __call__(self, step: Pass) -> tuple[Value, ...]:
        (h,), (f,) = step.states, step.activations
        return (f(clipped(step.projected + step.recur(h, step.weights), self.clip)),)


def parts(x: Value, count: int) -> tuple[Value, ...]:
    """The last axis in equal parts."""
    return tuple(ops.part(x, axis=-1, index=i, parts=count) for i in range(count))


def clipped(x: Value, limit: float | None) -> Value:
    return x if limit is None else ops.clip(x, -limit, limit)


@dataclass(frozen=True, slots=True)
class Layer:
    """The directions of one recurrent node over its input."""

    n: Site
    x: Value
    """[steps, batch, input]."""
    directions: tuple[bool, ...]
    """Whether each of them runs from the last step to the first."""
    batch_first: bool
    mask: Value | None
    """[steps, batch, 1]: whether a step is inside its sequence."""

    @staticmethod
    def of(n: Site, x: Value, direction: str, layout: int, sequence_lens: Value | None) -> Layer:
        """The layer that the attributes of a node describe."""
        directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(direction)
        if directions is None or layout not in (0, 1) or x.rank != 3:
            raise n.malformed(f"direction {direction!r} and layout {layout} for an input of {x.tensor}")
        steps = build.swap(x, 0, 1) if layout else x
        mask = None
        if sequence_lens is not None:
            lengths = build.expand_dims(sequence_lens, (0, -1))
            numbers = ops.iota(size=steps.shape[0], dtype=sequence_lens.dtype)
            mask = ops.less(build.expand_dims(numbers, (-1, -2)), lengths)
        return Layer(n, steps, directions, bool(layout), mask)

    def initial(self, given: Value | None, hidden: Value) -> tuple[Value, ...]:
        """The first state of each direction, [batch, hidden]; zeros unless given."""
        if given is None:
            zeros = build.zeros((self.x.shape[1], hidden.shape[-1]), self.x.dtype)
            return (zeros,) * len(self.directions)
        fronted = build.swap(given, 0, 1) if self.batch_first else given
        batch, own = self.x.shape[1], fronted.shape[1] if fronted.rank == 3 else None
        if own is None or (isinstance(own, int) and isinstance(batch, int) and own != batch):
            raise self.n.malformed(f"a first state of {given.tensor} for an input of {self.x.tensor}")
        # Exporters declare one batch as 1 and the other by name: a run checks that they are equal.
        found = fronted if own == batch else ops.sized(fronted, axis=1, size=batch)
        return tuple(build.select(found, axis=0, index=d) for d in range(len(self.directions)))

    def activations(
        self, named: Sequence[str], default: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
    ) -> list[tuple[Activation, ...]]:
        """The functions of each direction. Those that have an alpha or beta take the next one, or their default."""
        count = len(default)
        listed = list(named) if named else list(default) * len(self.directions)
        if len(listed) != count * len(self.directions):
            raise self.n.malformed(f"{len(listed)} activations for {len(self.directions)} directions of {count}")
        alpha, beta = iter(alphas), iter(betas)
        found = [self._activation(name, alpha, beta) for name in listed]
        return [tuple(found[i : i + count]) for i in range(0, len(found), count)]

    def _activation(self, name: str, alpha: Iterator[float], beta: Iterator[float]) -> Activation:
        known = _ACTIVATIONS.get(name.lower())
        if known is None:
            raise self.n.malformed(f"the activation {name!r}", hint=f"it is one of {', '.join(_ACTIVATIONS)}")
        function, *defaults = known
        numbers = [next(source, given) for source, given in zip((alpha, beta), defaults, strict=False)]
        if None in numbers:
            raise self.n.unsupported(f"{name} without its numbers", hint="give activation_alpha and activation_beta")
        return partial(function, *numbers) if numbers else function

    def run(self, passes: Sequence[Pass], cell: Cell) -> tuple[Value, ...]:
        """The outputs of the node: hidden states of all steps, then the last states."""
        results = [self._pass(one, cell) for one in passes]
        side = 1 if self.batch_first else 0
        hidden = build.stack([y for y, _ in results], axis=1)
        if self.batch_first:
            hidden = build.move_axis(hidden, 2, 0)
        last = [build.stack(states, axis=side) for states in zip(*(states for _, states in results), strict=True)]
        return (hidden, *last)

    def _pass(self, one: Pass, cell: Cell) -> tuple[Value, tuple[Value, ...]]:
        hidden, states = run_pass(one, cell, self.mask)
        if self.mask is None:
            return hidden, states
        # A sequence without steps has no last state: onnxruntime gives 0 for it.
        some = build.squeeze_dims(ops.reduce_any(self.mask, axes=(0,)), 0)
        return hidden, tuple(ops.where(some, v, leaf.scalar(0, v.dtype)) for v in states)


def _affine(alpha: float, beta: float, x: Value) -> Value:
    return x * alpha + beta


def _scaled_tanh(alpha: float, beta: float, x: Value) -> Value:
    return ops.tanh(x * beta) * alpha


def _leaky_relu(alpha: float, x: Value) -> Value:
    return ops.leaky_relu(x, slope=alpha)


def _thresholded_relu(alpha: float, x: Value) -> Value:
    return ops.threshold(x, above=alpha)


def _hard_sigmoid(alpha: float, beta: float, x: Value) -> Value:
    return ops.hard_sigmoid(x, alpha=alpha, beta=beta)


def _elu(alpha: float, x: Value) -> Value:
    return ops.elu(x, alpha=alpha)


_ACTIVATIONS: dict[str, tuple[Callable[..., Value], *tuple[float | None, ...]]] = {
    "relu": (ops.relu,),
    "tanh": (ops.tanh,),
    "sigmoid": (ops.sigmoid,),
    "softsign": (ops.softsign,),
    "softplus": (ops.softplus,),
    "elu": (_elu, 1.0),
    "leakyrelu": (_leaky_relu, 0.01),
    "thresholdedrelu": (_thresholded_relu, None),
    "hardsigmoid": (_hard_sigmoid, 0.2, 0.5),
    "affine": (_affine, None, None),
    "scaledtanh": (_scaled_tanh, None, None),
}
"""Each with the defaults of its alpha and beta; None where the standard and runtimes do not agree on one."""
