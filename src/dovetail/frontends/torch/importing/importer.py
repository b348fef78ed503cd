"""An exported program as a graph: call by call, each by the rule of its operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from dovetail import ops
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.shared.binding import with_binders
from dovetail.frontends.shared.computed import size_value
from dovetail.frontends.shared.dtypes import cast as cast_value
from dovetail.frontends.shared.importer import Importer, refuse
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.torch.exported import GETITEM, Body, Call, Exported, Leaf, Real, Ref, Result, Unknown
from dovetail.frontends.torch.importing.node import Nested, Node
from dovetail.frontends.torch.importing.rule import SAID_BY_THE_RESULT, Rule
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, symbols
from dovetail.ir.dtype import DType, i64
from dovetail.ir.graph import Graph
from dovetail.ir.type import TensorType, type_symbols
from dovetail.ir.value import Value
from dovetail.ops import build, generate
from dovetail.progress import phase

NOTHING_TO_DO = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten._assert_async.msg",
        "aten._assert_async.default",
        "aten._assert_scalar.default",
        "aten._linalg_check_errors.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)
"""Operators that compute nothing: checks of what the types say already."""
OF_TORCH = frozenset({"aten", "higher_order", "prim", "prims", "quantized", "quantized_decomposed", "rngprims"})
"""The namespaces of torch's own operators."""
ITEM = "aten._local_scalar_dense.default"
"""The operator that makes a Python number of a tensor."""
MOST_CONSTANT = 4096
"""Most elements of an integer tensor that is part of the graph; larger ones are parameters."""
MOST_CONSTANT_FLOATS = 8
"""The same for floats that are no weights: weights are parameters of whatever size, and can be bound again."""


def is_part(dtype: DType, count: int, is_weight: bool) -> bool:
    """Whether the elements of a tensor are constants of the graph: given its dtype, their number, what it is."""
    if dtype.is_inexact:
        return not is_weight and count <= MOST_CONSTANT_FLOATS
    return count <= MOST_CONSTANT


def refuse_missing(program: Exported, rules: Mapping[str, Rule]) -> None:
    """Refuse a program with operators that have no rule."""
    lacking = [call for call in every_call(program.calls) if not is_known(call, rules)]
    custom = [call.op for call in lacking if call.op.partition(".")[0] not in OF_TORCH]
    hint = "docs/torch-operators.md lists those that are"
    if custom:
        space, name, *_ = custom[0].split(".")
        hint = f'give a custom operator a body: compile(…, custom_ops={{"{space}::{name}": body}}); see docs/torch.md'
    refuse(((call.op, call.where) for call in lacking), hint)


def every_call(calls: Iterable[Call]) -> Iterator[Call]:
    """Calls, and those of the sub-graphs that they are given."""
    for call in calls:
        yield call
        for body in _bodies((*call.arguments, *call.keywords.values())):
            yield from every_call(body.calls)


def _bodies(given: Iterable[Any]) -> Iterator[Body]:
    for item in given:
        if isinstance(item, Body):
            yield item
        elif isinstance(item, list | tuple):
            yield from _bodies(cast(Iterable[Any], item))


def is_known(call: Call, rules: Mapping[str, Rule]) -> bool:
    return call.op in rules or call.op in NOTHING_TO_DO or "." not in call.op or is_number(call.result)


def is_number(result: Result) -> bool:
    """Whether torch tells the result of a call itself: arithmetic of sizes."""
    return isinstance(result, int | float | Dim | Real | str)


class Import(Importer):
    """One import of a program."""

    def __init__(self, program: Exported, rules: Mapping[str, Rule]) -> None:
        super().__init__(program.name)
        self.program = program
        self.rules = rules
        self._made: dict[str, Any] = {}
        self._of_numbers = False
        """Whether the calls are of a function of numbers, which is applied to tensors element by element."""
        self._read = _read_results(program)
        self.symbols = {name for one in program.leaves for name in type_symbols(one.type)}

    def graph(self) -> Graph:
        """The whole program."""
        self._refuse_missing()
        with self.builder.recording(), phase("nodes"):
            for one in self.program.leaves:
                self._made[one.name] = self._leaf(one)
            for call in self.program.calls:
                self._call(call)
            self._outputs()
        return replace(self.builder.graph(), frozen=self._frozen())

    def _frozen(self) -> dict[str, str]:
        """Why each parameter is not trained; one of several names is trained where one of them is."""
        named = [(one.target or one.name, one.frozen) for one in self.program.leaves if one.array is not None]
        trained = {name for name, why in named if not why}
        return {name: why for name, why in reversed(named) if name not in trained}

    def _refuse_missing(self) -> None:
        """Refuse a program with operators that have no rule."""
        refuse_missing(self.program, self.rules)

    def reads(self, call: Call, index: int) -> bool:
        return (call.name, index) in self._read

    def _leaf(self, one: Leaf) -> Value:
        if one.kind in ("input", "state"):
            return self.builder.input(one.name, one.type)
        array = one.array
        assert array is not None, "weights and constants come with their arrays"
        if is_part(one.type.dtype, array.size, one.kind == "param"):
            return leaf.constant(np.array(array))
        return self.builder.param(one.target or one.name, one.type, array)

    def _call(self, call: Call) -> None:
        with self.step(call.op, lambda: call.where, call.origins):
            self._made[call.name] = self._result(call)

    def _result(self, call: Call) -> Any:
        if call.op in NOTHING_TO_DO:
            return None
        if call.op == GETITEM:
            return self._item(call)
        rule = self.rules.get(call.op)
        if is_number(call.result):
            if call.op == ITEM:
                self._bind(call)
            return call.result
        if "." not in call.op:
            return call.result  # Python's own operator of sizes, which torch may only check
        assert rule is not None, "operators without a rule were refused"
        node = Node(call, self)
        arguments = [self._argument(a) for a in call.arguments]
        keywords = {k: self._argument(v) for k, v in call.keywords.items() if k not in SAID_BY_THE_RESULT}
        self._refuse_untaken(node, rule, arguments, keywords)
        return self._checked(node, rule(node, *arguments, **keywords))

    def _item(self, call: Call) -> Any:
        of, index = self._argument(call.arguments[0]), call.arguments[1]
        found = of[index]
        if found is None:
            raise UnsupportedError(
                f"result {index} of {cast(Ref, call.arguments[0]).name}", hint="use the others", where=call.where
            )
        return found

    def _bind(self, call: Call) -> None:
        """Bind the size that an integer of a tensor becomes; torch must say that it is none below 0."""
        size, number = call.result, self._argument(call.arguments[0])
        names = symbols(size) if isinstance(size, Dim) else frozenset[str]()
        least = [self.program.ranges.get(name, (-1, None))[0] for name in names]
        if not isinstance(size, Dim) or len(least) != 1 or least[0] < 0 or not number.dtype.is_integer:
            raise UnsupportedError(
                "a number of a tensor (item) that may be below 0, or is no integer",
                hint="keep it a tensor, or say torch._check(n >= 0)",
                where=call.where,
            )
        counted = generate.counting(build.reshape(cast_value(number, i64), ()), count=size)
        self._made[f"{call.name} bound"] = counted

    def _refuse_untaken(self, node: Node, rule: Rule, arguments: list[Any], keywords: Mapping[str, Any]) -> None:
        taken = rule.signature
        if taken.positional >= 0 and len(arguments) > taken.positional:
            extra = node.call.names[taken.positional :] or (f"argument {taken.positional}",)
            raise node.unsupported(f"{extra[0]} = {arguments[taken.positional]!r}", hint="leave it at its default")
        for name, value in keywords.items():
            if taken.keywords is not None and name not in taken.keywords:
                raise node.unsupported(f"{name} = {value!r}", hint="leave it at its default")

    def _argument(self, given: Any) -> Any:
        if isinstance(given, Ref):
            if given.name not in self._made:
                raise LoadError(f"nothing is named {given.name!r} here", hint="calls are in order")
            found = self._made[given.name]
            if isinstance(found, Unknown):
                raise UnsupportedError(found.reason, hint="export the model with fixed sizes")
            return found
        if isinstance(given, Body):
            return Nested(given, self._nested)
        if isinstance(given, list | tuple):
            listed = cast(Iterable[Any], given)
            return [self._argument(item) for item in listed]
        return given

    def _nested(self, body: Body, given: Sequence[Any], of_numbers: bool) -> tuple[Any, ...]:
        """What a sub-graph gives; its names are its own."""
        around, self._made = self._made, dict(zip(body.parameters, given, strict=True))
        before, self._of_numbers = self._of_numbers, of_numbers
        try:
            for call in body.calls:
                self._call(call)
            return tuple(self._argument(output) for output in body.outputs)
        finally:
            self._made, self._of_numbers = around, before

    def _checked(self, node: Node, made: Made) -> Any:
        """What a rule made, in the types that torch says; a difference is a mistake of the rule."""
        result = node.call.result
        if isinstance(made, Value) and isinstance(result, tuple) and len(result) == 1:
            return (self._typed(node, made, result[0]),)
        if isinstance(made, Value):
            return self._typed(node, made, result)
        wanted = result if isinstance(result, tuple) else (result,)
        if len(made) > len(wanted):
            raise node.malformed(f"{len(made)} results for {len(wanted)}")
        return tuple(None if m is None else self._typed(node, m, w) for m, w in zip(made, wanted, strict=False))

    def _typed(self, node: Node, made: Value, wanted: Result) -> Value:
        if isinstance(wanted, Unknown):
            raise node.unsupported(wanted.reason, hint="compute in another type")
        if not isinstance(wanted, TensorType):
            raise node.malformed(f"a tensor where torch has {wanted!r}")
        if self._of_numbers and made.dtype is wanted.dtype:
            return made
        if made.dtype is not wanted.dtype or made.rank != len(wanted.shape):
            raise node.malformed(f"the rule makes {made.type}, and torch says {wanted}", hint="report this rule")
        for axis, (found, size) in enumerate(zip(made.shape, wanted.shape, strict=True)):
            if found == size:
                continue
            if isinstance(found, int) and isinstance(size, int):
                raise node.malformed(f"the rule makes {made.type}, and torch says {wanted}", hint="report this rule")
            made = ops.sized(made, axis=axis, size=size)
        return made

    def _outputs(self) -> None:
        tensors: list[tuple[str, Value, str]] = []
        leaves = {one.name: one for one in self.program.leaves}
        for index, output in enumerate(self.program.outputs):
            value = self._argument(output.value)
            if f"output_{index}" in self.program.sizes:
                value = size_value(value)
            if not isinstance(value, Value):
                continue
            name = f"{output.mutates}_after" if output.mutates else f"output_{index}"
            held = leaves[output.mutates].type if output.mutates else None
            tensors.append((name, value, output.mutates if held == value.type else ""))
        bound = with_binders([v for _, v, _ in tensors], [v for v in self._made.values() if isinstance(v, Value)])
        for (name, _, into), value in zip(tensors, bound, strict=True):
            self.builder.output(name, value, into=into)


def _read_results(program: Exported) -> frozenset[tuple[str, int]]:
    """The results of calls with several that anything reads, by the name of the call and their index."""
    found: set[tuple[str, int]] = set()
    for call in every_call(program.calls):
        if call.op == GETITEM and isinstance(call.arguments[0], Ref):
            found.add((call.arguments[0].name, call.arguments[1]))
    return frozenset(found)
