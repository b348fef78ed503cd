"""The backward op of a declared op: a fused op whose body is the pull of the body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, cast, overload

from dovetail.declare.fused import FusedOp, Result, Stage
from dovetail.declare.signature import Signature
from dovetail.errors import TraceError, TypeRuleError
from dovetail.grad.terms import masked
from dovetail.grad.walk import pull_body
from dovetail.ir import leaf
from dovetail.ir.inline import inline
from dovetail.ir.type import tensors
from dovetail.ir.value import Value, make

P = ParamSpec("P")
_OWN = ("wanted", "given")


class BackwardOp(FusedOp[...]):
    """`op.back`: operands of the op, then gradients of some of its results, give gradients of some of its operands.

    `given` are the results that have a gradient, `wanted` the operands that need one. It is found by no pattern: the
    walk makes it where it meets the op.
    """

    def __init__(self, forward: FusedOp[...]) -> None:
        self.forward = forward
        self.name = backward_name(forward)
        self.body = _no_body
        self.doc = f"The gradients of `{forward.name}`: the pull of its body, as one op."
        self.shapes, self.stage = forward.shapes, "fuse"
        self.__name__ = self.name
        self.__doc__ = f"{self.name}: {self.doc}"
        self.signature = Signature.of(_no_body)
        self.guards, self.refusals, self.spellings, self.cost_of = [], [], [], None
        self.form = None
        self._traced = {}
        self.backward = ()
        # It has no patterns: these say what a declaration would derive from them.
        self.variants, self.patterns, self.parts = (), (), frozenset()
        self.elementwise = self.keeps_its_gradient = self.differentiates_by_row = False

    def of_value(self, value: Value, gs: Mapping[int, Value], wanted: Sequence[int]) -> Value:
        """The gradients of the operands `wanted` of a value of the forward op, as results of one value."""
        attrs = {**value.attrs, "wanted": tuple(wanted), "given": tuple(gs)}
        return make(self, (*value.operands, *gs.values()), attrs)

    def pulled_from(
        self, value: Value, g: Value | tuple[Value | None, ...], wanted: tuple[int, ...]
    ) -> tuple[Value | None, ...] | None:
        """The gradients of operands: what one kernel computes as results of one value, sums over rows spelled out."""
        given = {i: part for i, part in enumerate(g) if part is not None} if isinstance(g, tuple) else {0: g}
        if self.forward.backward and not self._serves(value, given, wanted):
            return None
        together = self._together(value, given, wanted)
        parts: dict[int, Value] = {}
        if together:
            made = self.of_value(value, given, together)
            parts.update(zip(together, [made] if len(together) == 1 else list(made), strict=True))
        rest = [i for i in wanted if i not in together]
        if rest:
            attrs = {**value.attrs, "wanted": tuple(rest), "given": tuple(given)}
            spelled = self.expansion((*value.operands, *given.values()), attrs)
            parts.update(zip(rest, [spelled] if len(rest) == 1 else list(spelled), strict=True))
        return tuple([parts.get(i) for i in range(len(value.operands))])

    def _together(self, value: Value, given: Mapping[int, Value], wanted: Sequence[int]) -> list[int]:
        """The operands whose gradients are results of one value."""
        if self.forward.backward:
            return list(wanted)
        shapes = [part.shape for part in given.values()]
        return [i for i in wanted if value.operands[i].shape in shapes] if self.forward.keeps_its_gradient else []

    def _serves(self, value: Value, given: Mapping[int, Value], wanted: Sequence[int]) -> bool:
        """Whether the one kernel serves: it has all that is wanted, and no row of the gradient is masked.

        A masked row may hold NaN, which the kernel would add to the gradients of other rows.
        """
        names = value.attrs.get("operands") or tuple(self.forward.signature.operand_names)
        if any(names[i] not in self.forward.backward for i in wanted):
            return False
        masks = [mask for g in given.values() if (mask := masked(g)) is not None]
        return not any(mask.is_by_row(value) for mask in masks)

    def forward_value(self, value: Value) -> Value:
        """The value of the forward op whose gradients a value computes."""
        own = value.operands[: len(value.operands) - len(value.attrs["given"])]
        return make(self.forward, own, self._of_forward(value.attrs))

    def normal(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> dict[str, Any]:
        chosen: dict[str, tuple[int, ...]] = {}
        for name in _OWN:
            listed = attrs.get(name)
            numbers = cast(tuple[Any, ...], listed) if isinstance(listed, tuple) else ()
            if not numbers or any(type(n) is not int or n < 0 for n in numbers) or sorted(set(numbers)) != [*numbers]:
                raise TypeRuleError(f"{self.name} with {name}={listed!r}", hint=f"{name} are places in rising order")
            chosen[name] = numbers
        own = operands[: len(operands) - len(chosen["given"])]
        if chosen["wanted"][-1] >= len(own):
            raise TypeRuleError(f"{self.name} by operand {chosen['wanted'][-1]} of {len(own)}", hint="count from 0")
        return {**self.forward.normal(own, self._of_forward(attrs)), **chosen}

    def _of_forward(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in attrs.items() if name not in _OWN}

    def arguments(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> dict[str, Any]:
        given: tuple[int, ...] = attrs["given"]
        own = operands[: len(operands) - len(given)]
        gs = {f"g{i}": g for i, g in zip(given, operands[len(own) :], strict=True)}
        return {**self.forward.arguments(own, self._of_forward(attrs)), **gs}

    def expansion(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> Value:
        """The declared form where there is one, else the pull of the body."""
        given: tuple[int, ...] = attrs["given"]
        wanted: tuple[int, ...] = attrs["wanted"]
        own, gs = operands[: len(operands) - len(given)], operands[len(operands) - len(given) :]
        forward = self._of_forward(attrs)
        y = make(self.forward, own, forward)
        self._check(y, given, gs, [own[i] for i in wanted])
        if self.forward.form is not None and given == (0,):
            parts = self.forward.form(gs[0], y, **self.forward.arguments(own, forward))
            named = dict(zip(self.forward.signature.operand_names, parts, strict=True))
            names = attrs.get("operands") or tuple(self.forward.signature.operand_names)
            found = [part for i in wanted if (part := named[names[i]]) is not None]
            if len(found) != len(wanted):
                raise TraceError(
                    f"the gradient that {self.forward.name} declares leaves out an operand",
                    hint="give a part for each operand that is a float",
                )
        else:
            found = list(self.derived(own, gs, forward, given, wanted))
        return found[0] if len(found) == 1 else leaf.pack(tuple(found))

    def _check(self, y: Value, given: Sequence[int], gs: Sequence[Value], wanted: Sequence[Value]) -> None:
        """Raise unless each gradient has the type of its result, and all that are wanted are of floats."""
        results = tensors(y.type)
        if given[-1] >= len(results) or any(g.type != results[i] for i, g in zip(given, gs, strict=True)):
            raise TypeRuleError(
                f"{self.name} of gradients {', '.join(str(g.type) for g in gs)} at {tuple(given)}",
                hint=f"{self.forward.name} gives {y.type}; a gradient has the type of its result",
            )
        if not all(v.dtype.is_float for v in wanted):
            raise TypeRuleError(f"{self.name} by {wanted}", hint="only floats have a gradient")

    def derived(
        self,
        operands: tuple[Value, ...],
        gs: tuple[Value, ...],
        attrs: Mapping[str, Any],
        given: Sequence[int],
        wanted: Sequence[int],
    ) -> tuple[Value, ...]:
        """The pull of the body of the forward op, on its operands."""
        _, _, body = self.forward.traced(tuple([v.type for v in operands]), attrs)
        return inline(pull_body(body, given, wanted), (*operands, *gs))

    def __repr__(self) -> str:
        return f"<backward op {self.name}>"


def with_backward(op: FusedOp[P]) -> FusedOp[P]:
    """The op with its backward op."""
    op.back = BackwardOp(op)
    return op


def backward_name(op: FusedOp[...]) -> str:
    """What the backward op of a declared op is called."""
    return f"{op.name}_back"


def _no_body() -> Value:
    raise TypeRuleError("a backward op has no body of its own", hint="expand one of its values")


@overload
def fused_op(body: Callable[P, Result], /) -> FusedOp[P]: ...
@overload
def fused_op(
    *, shapes: str = "", stage: Stage = "fuse", backward: Sequence[str] = ()
) -> Callable[[Callable[P, Result]], FusedOp[P]]: ...
def fused_op(
    body: Callable[P, Result] | None = None,
    /,
    *,
    shapes: str = "",
    stage: Stage = "fuse",
    backward: Sequence[str] = (),
) -> FusedOp[P] | Callable[[Callable[P, Result]], FusedOp[P]]:
    """Declare a fused op by its body. `shapes` says what fits: "x[*, m, k] w[k, n] b[n]".

    `backward` names operands whose gradients one kernel computes: then the backward op stays one op, though it is no
    pass over rows.
    """
    if body is not None:
        return with_backward(FusedOp(body, shapes=shapes, stage=stage))
    return lambda declared: with_backward(FusedOp(declared, shapes=shapes, stage=stage, backward=backward))


__all__ = ["BackwardOp", "backward_name", "fused_op", "with_backward"]
