"""The part of a training step that gradients go into: their norm, clipping, the guard, and the optimizer's update.

The update of a weight and its state is one region: one pass over memory that works in place.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.grad.gradient import Unreached
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, f32
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.inline import inline
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops.region import region
from dovetail.passes.memory_rules import is_elementwise
from dovetail.renamed import old_fields
from dovetail.train.losses import total
from dovetail.train.optimizers import Optimizer
from dovetail.train.rows import Rows, rows_of

RATE, SCALE, NORM = "train.rate", "train.scale", "train.norm"
"""The inputs with the learning rate and the scale of the loss, and the output with the norm of all gradients."""
NEW, SUM = "new.", "sum."
"""What the output of an array after the step is called, and what the sum of a weight's gradients."""
TINY = 1e-6
"""Added to a norm before it divides."""
_NARROW = 4
"""Floats of fewer bytes are widened step by step where regions are marked, not in a region that is made here."""


@old_fields(rate="lr_scale", decay="weight_decay")
@dataclass(frozen=True, slots=True)
class Group:
    """Weights by pattern, with a learning rate and a weight decay of their own."""

    names: str
    lr_scale: float = 1.0
    """What the optimizer's learning rate is multiplied by."""
    weight_decay: float | None = None
    """None for the optimizer's own."""


@old_fields(momentum="batch_norm_momentum")
@dataclass(frozen=True, slots=True)
class StepOptions:
    """How gradients become a step."""

    groups: Sequence[Group] = ()
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    """Micro-batches of a step."""
    precision: DType | None = None
    """What products are computed in; None for the dtypes of the graph."""
    scaled: bool = False
    """Whether the loss is multiplied by an input before it is differentiated, and the gradients divided by it."""
    guarded: bool = True
    """Whether a step whose loss or gradients are not finite leaves all arrays as they are."""
    batch_norm_momentum: float = 0.1
    """How far a step moves the stored statistics of batch norms."""
    unreached: Unreached = "error"
    """What becomes of weights that the loss does not reach: an error, or gradients of zeros."""
    by_rows: bool = False
    """Whether gradients of tables stay rows, and no table of zeros is written; targets without meshes want it."""

    def __post_init__(self) -> None:
        for name, most in (("clip_norm", self.clip_norm), ("clip_value", self.clip_value)):
            if most is not None and not 0 < most < float("inf"):
                raise OptionError(f"{name} of {most}", hint="pass a finite number above 0")
        if self.accumulate < 1:
            raise OptionError(f"a step of {self.accumulate} micro-batches", hint="pass at least 1")
        if not 0 <= self.batch_norm_momentum <= 1:
            raise OptionError(f"batch_norm_momentum of {self.batch_norm_momentum}", hint="pass a share from 0 to 1")


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Values of one element that the updates of all weights read."""

    scalars: Mapping[str, Value]
    """The rate and the optimizer's own numbers, by name."""
    scale: Value | None
    """What gradients are divided by."""
    clip: Value | None
    """What they are multiplied by once they are clipped by value."""
    guard: Value | None

    def __iter__(self) -> Iterator[Value]:
        yield from self.scalars.values()
        yield from [v for v in (self.scale, self.clip, self.guard) if v is not None]

    def of(self, values: Sequence[Value]) -> _Numbers:
        """Return the same numbers by other values."""
        new = dict(zip(self, values, strict=True))
        scale, clip, guard = [None if v is None else new[v] for v in (self.scale, self.clip, self.guard)]
        return _Numbers({n: new[v] for n, v in self.scalars.items()}, scale, clip, guard)


class Update:
    """Makes the update of all weights; `loss` is None where gradients were summed before."""

    def __init__(self, optimizer: Optimizer, options: StepOptions, loss: Value | None) -> None:
        self.optimizer, self.options, self.loss = optimizer, options, loss
        self.state: dict[str, TensorType] = {}
        self._bodies: dict[Hashable, tuple[Subgraph, bool]] = {}
        """Updates by the types of weights, and whether they are one pass over memory."""

    def graph(
        self,
        base: Graph,
        reported: Mapping[str, Value],
        weights: Mapping[str, Value],
        gradients: Mapping[str, Value],
        moved: Mapping[str, Value],
    ) -> Graph:
        """Return the base with all arrays after the step; `moved` are those that no gradient moves."""
        options = self.options
        scale = leaf.input(SCALE, f32[()]) if options.scaled else None
        rows = {n: r for n, g in gradients.items() if (r := self._rows(weights[n], g)) is not None}
        unscaled = [self._unscaled(rows[n].once if n in rows else g, scale) for n, g in gradients.items()]
        norm = _norm(unscaled)
        guard = None
        if options.guarded:
            guard = finite(norm) if self.loss is None else ops.bit_and(finite(norm), finite(self.loss))
        names = {RATE: "rate"} | {f"train.{n}": n for n in self.optimizer.numbers(1)}
        scalars = {n: leaf.input(name, f32[()]) for name, n in names.items()}
        numbers = _Numbers(scalars, scale, self._clip(unscaled, norm), guard)
        inputs = {str(v.attrs["name"]): v for v in base.inputs}
        after = kept(moved, inputs, guard)
        for name, w in weights.items():
            after |= self._moved(name, w, rows.get(name, gradients[name]), inputs, numbers)
        more = {str(v.attrs["name"]): v for v in (*scalars.values(), scale) if v is not None}
        updated = replace(
            base,
            inputs=tuple((inputs | more).values()),
            outputs={**reported, NORM: norm, **after},
            reread=None,
        )
        return updated.donate({n: n.removeprefix(NEW) for n in after})

    def _unscaled(self, g: Value, scale: Value | None) -> Value:
        """Return a gradient from the sum of those of micro-batches, of a scaled loss."""
        g = g if self.options.accumulate == 1 else g * (1.0 / self.options.accumulate)
        return g if scale is None else g / as_dtype(scale, g)

    def _clip(self, gradients: Sequence[Value], norm: Value) -> Value | None:
        """Return the factor of gradients that keeps their norm at most the limit."""
        if self.options.clip_norm is None:
            return None
        norm = norm if self.options.clip_value is None else _norm([self._clipped(g) for g in gradients])
        return ops.minimum(leaf.scalar(1.0, f32), self.options.clip_norm / (norm + TINY))

    def _clipped(self, g: Value) -> Value:
        if self.options.clip_value is None:
            return g
        most = leaf.scalar(self.options.clip_value, g.dtype)
        return ops.minimum(ops.maximum(g, -most), most)

    def _rows(self, w: Value, g: Value) -> Rows | None:
        """Return the rows of a gradient, where the update of an element reads no others."""
        rows = rows_of(g) if self.options.by_rows else None
        if rows is None:
            return None
        shape = tuple(int(str(size)) for size in w.shape)
        slots = self.optimizer.state(shape)
        names = ("rate", "decay", *self.optimizer.numbers(1))
        types = [*[w.tensor] * (2 + len(slots)), *[w.dtype[()]] * len(names)]
        weight, g, *others = [leaf.argument(i, t) for i, t in enumerate(types)]
        own = dict(zip(slots, others, strict=False))
        if any(of != shape for of in slots.values()):
            return None
        updated = self.optimizer.update(weight, g, own, dict(zip(names, others[len(slots) :], strict=True)))
        body = Subgraph(tuple(types), (updated.weight, *(updated.state[slot] for slot in slots)))
        return rows if _is_one_pass(body) else None

    def _moved(
        self, name: str, w: Value, g: Value | Rows, inputs: dict[str, Value], numbers: _Numbers
    ) -> dict[str, Value]:
        """Return a weight and its state after the step; add the inputs of its state to `inputs`."""
        group = next((g for g in reversed(self.options.groups) if fnmatchcase(name, g.names)), Group("*"))
        shapes = self.optimizer.state(tuple(int(str(size)) for size in w.shape))
        own = {slot: leaf.input(f"{name}.{slot}", w.dtype[shape]) for slot, shape in shapes.items()}
        inputs |= {f"{name}.{slot}": v for slot, v in own.items()}
        self.state |= {f"{name}.{slot}": v.tensor for slot, v in own.items()}
        if isinstance(g, Rows):
            moved = self._updated(w, None, own, numbers, group)
            few = self._updated(g.of(w), g.every, {slot: g.of(v) for slot, v in own.items()}, numbers, group)
            results = [g.put(table, rows) for table, rows in zip(moved, few, strict=True)]
        else:
            results = self._updated(w, g, own, numbers, group)
        return dict(zip([NEW + name, *(f"{NEW}{name}.{slot}" for slot in own)], results, strict=True))

    def _updated(
        self, w: Value, g: Value | None, own: Mapping[str, Value], numbers: _Numbers, group: Group
    ) -> list[Value]:
        """Return a weight and its state after the step; without a gradient it is zero everywhere."""
        operands = [w, *([] if g is None else [g]), *own.values(), *numbers]
        body, is_one_pass = self._body([v.tensor for v in operands], list(own), numbers, group, g is not None)
        if not is_one_pass:
            return list(inline(body, operands))
        updated = region(body, operands)
        return [leaf.item(updated, i) for i in range(len(body.results))] if own else [updated]

    def _body(
        self, types: Sequence[TensorType], slots: Sequence[str], numbers: _Numbers, group: Group, has_gradient: bool
    ) -> tuple[Subgraph, bool]:
        """Return the update of weights of one type and group, as a sub-graph of the weight, gradient, state and
        numbers.
        """
        decay = self.optimizer.weight_decay if group.weight_decay is None else group.weight_decay
        key = (*types, group.lr_scale, decay, has_gradient)
        if key not in self._bodies:
            w, *others = [leaf.argument(i, t) for i, t in enumerate(types)]
            g = others.pop(0) if has_gradient else leaf.scalar(0.0, w.dtype)
            own = dict(zip(slots, others, strict=False))
            now = numbers.of(others[len(slots) :])
            g = self._clipped(self._unscaled(g, now.scale))
            g = g if now.clip is None else g * as_dtype(now.clip, g)
            rate = now.scalars["rate"] if group.lr_scale == 1 else now.scalars["rate"] * group.lr_scale
            scalars = {**now.scalars, "rate": rate, "decay": leaf.scalar(decay, f32)}
            updated = self.optimizer.update(w, g, own, {n: as_dtype(v, w) for n, v in scalars.items()})
            after = {"": updated.weight, **{slot: updated.state[slot] for slot in slots}}
            results = tuple(kept(after, {"": w, **own}, now.guard).values())
            body = Subgraph(tuple(types), results)
            self._bodies[key] = body, _is_one_pass(body)
        return self._bodies[key]


def _is_one_pass(body: Subgraph) -> bool:
    """Return whether one kernel computes all results in one loop over their elements."""
    narrow = any(v.dtype.is_float and v.dtype.itemsize < _NARROW for v in body.values)
    return is_elementwise(body) and not narrow and body.results[0].tensor.count != 1


def kept(moved: Mapping[str, Value], before: Mapping[str, Value], guard: Value | None) -> dict[str, Value]:
    """Arrays after the step, by the names of outputs: those of before where the guard does not hold."""
    if guard is None:
        return {NEW + n: v for n, v in moved.items()}
    return {NEW + n: ops.where(guard, v, before[n]) for n, v in moved.items()}


def finite(x: Value) -> Value:
    """Return whether the one element of a value is neither NaN nor infinite, of rank 0."""
    return ops.less(ops.abs_(ops.reshape(x, ())), leaf.scalar(float("inf"), x.dtype))


def as_dtype(number: Value, w: Value) -> Value:
    """Return a number in the dtype of another value."""
    return number if number.dtype is w.dtype else ops.cast(number, dtype=w.dtype)


def _norm(gradients: Sequence[Value]) -> Value:
    """Return the root of the sum of all squares, in f32. It reads last gradients first, as a backward pass."""
    squares = [total(_square_sums(_as_f32(g))) for g in reversed(gradients)]
    while len(squares) > 1:
        last = squares[-1:] if len(squares) % 2 else []
        squares = [x + y for x, y in zip(squares[::2], squares[1::2], strict=False)] + last
    return ops.sqrt(squares[0])


def _square_sums(g: Value) -> Value:
    """Return the sum of squares of each row: threads share the rows, and no square is written."""
    return ops.reduce_sum(g * g, axes=(-1,)) if g.rank > 1 else g * g


def _as_f32(x: Value) -> Value:
    return x if x.dtype is f32 else ops.cast(x, dtype=f32)


__all__ = ["NEW", "NORM", "RATE", "SCALE", "SUM", "Group", "StepOptions", "Update", "as_dtype", "finite", "kept"]
