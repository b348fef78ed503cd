"""Hints: changes to a model that keep its numbers, make a missed fusion happen, and are predicted to gain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.cost import Cost, Machine, estimate, kernel_cost, total_seconds, type_bytes, view_base
from dovetail.declare.fused import FusedOp
from dovetail.derive.missed import BETWEEN, PRIVATE, Missed
from dovetail.derive.near import moves_out
from dovetail.errors import DovetailError
from dovetail.ir import leaf
from dovetail.ir.dim import Size, total
from dovetail.ir.literal import Array
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops.region import region, steps
from dovetail.passes.claims import Claims

_LEAVES = (leaf.INPUT, leaf.PARAM)
_LARGEST_COMPARED = 1 << 26
"""Bytes of a parameter that is read to see whether it repeats itself."""
SHORT = 64
"""Flops for each byte written, below which products with an epilogue were measured slower than apart (k = 128)."""
LEAST_GAIN = 0.1
"""The share of the kernels' time that a hint has to save: predictions of single kernels differ from measured times by a
fifth, and a fused kernel that saves less was as often slower."""


@dataclass(frozen=True, slots=True)
class Hint:
    """What to change, in words and as data, and what that is predicted to gain."""

    words: str = ""
    changes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Input or parameter -> the type to give it, with the same numbers repeated, or once instead of repeated."""
    seconds: float = 0.0
    """Predicted gain of a run."""
    pays: bool = True
    """Whether the machine that decides fusions says that fusing would pay; a gate must not ask the host."""


NO_HINT = Hint()
NOT_WORTH_IT = Hint(pays=False)


@dataclass(frozen=True, slots=True)
class Hints:
    """Finds the hint of a miss on one target."""

    ops: Mapping[str, FusedOp[...]]
    claims: Claims
    machine: Machine
    sizes: Mapping[str, Size]
    params: Mapping[str, Array]

    @staticmethod
    def of(
        ops: Iterable[FusedOp[...]],
        claims: Claims,
        machine: Machine,
        sizes: Mapping[str, Size],
        params: Mapping[str, Array],
    ) -> Hints:
        return Hints({op.name: op for op in ops}, claims, machine, sizes, params)

    def of_miss(self, miss: Missed, homes: Sequence[Value]) -> Hint:
        """The hint of a miss whose values are computed by these kernels now; none where nothing is gained."""
        op = self.ops.get(miss.rule)
        if op is None or len(homes) < 2:
            return NO_HINT if miss.reason != BETWEEN else NOT_WORTH_IT
        if miss.reason == PRIVATE:
            return self._unshared(op, miss, homes)
        if miss.reason == BETWEEN:
            return self._moved_out(op, miss, homes)
        guard = next((g for g in op.guards if g.name == miss.reason and g.remedy is not None), None)
        if guard is None or guard.remedy is None:
            return NO_HINT
        changes = guard.remedy.changes({**miss.caught, "result": miss.root}) or {}
        wanted = self._same_numbers(miss.caught, changes)
        if wanted:
            return self._stretched(op, guard.hint, miss, homes, wanted)
        return Hint(pays=self._would_pay(op, miss, homes, changes))

    def _would_pay(self, op: FusedOp[...], miss: Missed, homes: Sequence[Value], changes: Mapping[str, object]) -> bool:
        """Whether the op would pay if it had the operands that its guard asks for, which may be other numbers."""
        types = {name: new for name, new in changes.items() if isinstance(new, TensorType)}
        if any(self._is_computed_whole(miss.caught.get(name), type) for name, type in types.items()):
            return False
        operands = {**miss.caught, **{name: leaf.input(name, type) for name, type in types.items()}}
        # What would read more has to be clear of the noise of the predictions, as in a hint.
        less = all(isinstance(v := miss.caught[name], Value) and type.rank < v.rank for name, type in types.items())
        decided = self._gain(op, operands, miss, homes, self.claims.machine, sure=less)
        return decided is None or decided > 0

    def _is_computed_whole(self, value: object, type: TensorType) -> bool:
        """Whether a model computes more numbers than a guard asks for: a residual is no bias."""
        if not isinstance(value, Value) or view_base(value).op in leaf.LEAVES or not isinstance(value.type, TensorType):
            return False
        return estimate(value.tensor.count, self.sizes) > estimate(type.count, self.sizes)

    def _stretched(
        self, op: FusedOp[...], hint: str, miss: Missed, homes: Sequence[Value], wanted: Mapping[str, TensorType]
    ) -> Hint:
        operands = {**miss.caught, **{name: _of_type(miss.caught[name], type) for name, type in wanted.items()}}
        less = all(type.rank < miss.caught[name].rank for name, type in wanted.items())
        decided = self._gain(op, operands, miss, homes, self.claims.machine, sure=less)
        if decided is None:
            return NO_HINT
        gain = self._gain(op, operands, miss, homes, self.machine, sure=less) or 0.0
        if decided <= 0 or gain <= 0:
            return Hint(pays=decided > 0)
        changes = {str(miss.caught[name].attrs["name"]): str(type) for name, type in wanted.items()}
        told = " and ".join(f"{name} as {type}" for name, type in changes.items())
        words = f"{hint}: pass {told}; the numbers repeat, so the model computes the same"
        return Hint(words, changes, gain)

    def _unshared(self, op: FusedOp[...], miss: Missed, homes: Sequence[Value]) -> Hint:
        gain = self._gain(op, miss.caught, miss, homes, self.machine, sure=False)
        if gain is None or gain <= 0 or not miss.shared:
            return NO_HINT
        culprit = miss.shared[0]
        words = f"if nothing needs the other use of {culprit.op.name} {culprit.type}, drop it: this changes the model"
        return Hint(words, {}, gain)

    def _moved_out(self, op: FusedOp[...], miss: Missed, homes: Sequence[Value]) -> Hint:
        """What stands in between may stand elsewhere, where that pays; ops that compute something are the model's."""
        if not all(map(moves_out, miss.between)):
            return NOT_WORTH_IT
        decided = self._gain(op, miss.caught, miss, homes, self.claims.machine, sure=False)
        gain = self._gain(op, miss.caught, miss, homes, self.machine, sure=False)
        if decided is None or gain is None or decided <= 0 or gain <= 0:
            return NOT_WORTH_IT
        names = ", ".join(dict.fromkeys(v.op.name for v in miss.between))
        if all(v.op is ops.cast for v in miss.between):
            return Hint(f"leave {names} out if its rounding is not needed", {}, gain)
        return Hint(f"{names} before or after {op.name} instead of inside it", {}, gain)

    def _gain(
        self,
        op: FusedOp[...],
        operands: Mapping[str, object],
        miss: Missed,
        homes: Sequence[Value],
        machine: Machine,
        *,
        sure: bool,
    ) -> float | None:
        """What one kernel saves of those that there are; kernels that do more than was missed stay."""
        try:
            fused = op(**operands)
        except (DovetailError, TypeError):
            return None
        if self.claims.refusal(fused) is not None:
            return None
        asked = {**operands, "result": miss.root}
        if not all(guard.check(asked) for guard in op.guards):
            return None
        if not sure and self._is_short(fused):
            return 0.0
        gone = [k for k in homes if not _does_more(k, miss)]
        if not gone:
            return 0.0
        before = total_seconds(gone, machine, self.sizes)
        # What stands in between kept a larger op from taking up a part of the pattern.
        taken_up = miss.reason != BETWEEN and _is_inside_another(fused, gone)
        after = self._joined(gone) if taken_up else kernel_cost(fused)
        gain = before - machine.seconds(after, self.sizes)
        # Reading less can only gain; what reads more has to be clear of the noise of the predictions.
        return gain if sure or gain > LEAST_GAIN * before else min(gain, 0.0)

    def _joined(self, kernels: Sequence[Value]) -> Cost:
        """The cost of kernels as one: what they hand on is neither written nor read."""
        costs = [kernel_cost(k) for k in kernels]
        first = max(costs, key=lambda cost: estimate(cost.flops, self.sizes))
        between = total(type_bytes(k.type) * 2 for k in kernels if any(k in other.operands for other in kernels))
        return replace(
            first,
            flops=total(cost.flops for cost in costs),
            bytes=total(cost.bytes for cost in costs) - between,
            given=total(cost.given for cost in costs),
        )

    def _same_numbers(self, caught: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, TensorType]:
        """The changes, where each keeps the numbers of an input or parameter; empty where one does not."""
        found: dict[str, TensorType] = {}
        for name, type in changes.items():
            value = caught.get(name)
            if not isinstance(value, Value) or not isinstance(type, TensorType):
                return {}
            if value.type == type:
                continue
            kept = _stretches(value.tensor, type) or self._is_repeated(value, type)
            if value.op not in _LEAVES or not kept:
                return {}
            found[name] = type
        return found

    def _is_repeated(self, value: Value, type: TensorType) -> bool:
        """Whether a parameter holds the numbers of the smaller type again and again, as exporters expand a bias."""
        array = self.params.get(str(value.attrs.get("name", ""))) if value.op is leaf.PARAM else None
        if array is None or array.nbytes > _LARGEST_COMPARED or not _stretches(type, value.tensor):
            return False
        first = array[(0,) * (array.ndim - type.rank)]
        kept = tuple(slice(0, 1) if size == 1 else slice(None) for size in type.shape)
        return bool(np.array_equal(np.broadcast_to(first[kept], array.shape), array))

    def _is_short(self, fused: Value) -> bool:
        """Whether a product sums too little for each element to hide what its epilogue reads."""
        cost = kernel_cost(fused)
        written = estimate(type_bytes(fused.type), self.sizes)
        return 0 < estimate(cost.dense, self.sizes) < SHORT * written


def _is_inside_another(fused: Value, kernels: Sequence[Value]) -> bool:
    """Whether a kernel computes what the fused op would read: a larger op has taken a part of the pattern up."""
    read = {v for kernel in kernels for v in kernel.operands}
    return any(v.op not in leaf.LEAVES and v not in read for v in fused.operands)


def _does_more(kernel: Value, miss: Missed) -> bool:
    """Whether a kernel has a product or steps that the miss would not have swallowed."""
    inside = {v for v, now in zip(miss.covers, miss.values, strict=True) if now is kernel}
    if kernel_cost(kernel).dense != 0 and all(kernel_cost(v).dense == 0 for v in inside):
        return True
    if kernel.op is not region:
        return False
    return len(steps(kernel.attrs["body"])) > len(inside)


def _stretches(old: TensorType, new: TensorType) -> bool:
    """Whether repeating along axes of size 1, or new axes in front, makes the new type."""
    if old.dtype is not new.dtype or new.rank < old.rank:
        return False
    tail = new.shape[new.rank - old.rank :]
    return all(a == b or a == 1 for a, b in zip(old.shape, tail, strict=True))


def _of_type(value: Value, type: TensorType) -> Value:
    name = str(value.attrs["name"])
    return leaf.param(name, type) if value.op is leaf.PARAM else leaf.input(name, type)


__all__ = ["NO_HINT", "Hint", "Hints"]
