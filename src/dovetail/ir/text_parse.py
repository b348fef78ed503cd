"""Text back to the graph that was printed. Every text that is not a graph gives a ParseError."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any, cast, get_args, get_type_hints

from dovetail.dataclass import dataclass
from dovetail.errors import DovetailError, GraphError
from dovetail.ir import attribute, leaf
from dovetail.ir.donation import check_donated
from dovetail.ir.dtype import BY_NAME
from dovetail.ir.fact import Constraint, Relation
from dovetail.ir.graph import Graph, Subgraph, walk_into
from dovetail.ir.literal import Literal
from dovetail.ir.origin import Origin, merge
from dovetail.ir.text_lex import WORDS, Lexer
from dovetail.ir.type import TensorType
from dovetail.ir.value import Op, Value, make
from dovetail.nearest import nearest

_ORIGINS: tuple[str, ...] = get_args(get_type_hints(Origin)["kind"])
_RELATIONS: tuple[str, ...] = get_args(Relation)
_MOST_SPELLED = 16
"""How many spellings of the attributes of one op are remembered."""
_WORDS: dict[str, Any] = {**WORDS, **BY_NAME, "none": None}


def parse_graph(text: str, ops: Iterable[Op], *, blobs: Sequence[Literal] = (), file: str = "") -> Graph:
    """Parse a graph in the vocabulary of `ops`.

    `blobs` are the arrays that the text refers to by number. With `file`, values that state no origin get the
    file's name and their line as one.
    """
    parser = _Parser(text, _vocabulary(ops), blobs, file)
    try:
        return parser.graph()
    except RecursionError:
        parser.fail("text that is nested too deep for the stack at hand", "parse it from fewer calls deep")


def _vocabulary(ops: Iterable[Op]) -> dict[str, Op]:
    known: dict[str, Op] = {}
    for op in (*leaf.LEAVES, *ops):
        if known.setdefault(op.name, op) is not op:
            raise GraphError(f"two ops are named {op.name!r}", hint="pass each op once, under a name of its own")
    return known


@dataclass(slots=True)
class _Scope:
    """What the values at one level can read."""

    depth: int
    named: dict[str, Value] = field(default_factory=dict[str, Value])
    local: dict[str, Value] = field(default_factory=dict[str, Value])


class _Parser(Lexer):
    def __init__(self, text: str, ops: dict[str, Op], blobs: Sequence[Literal], file: str) -> None:
        super().__init__(text, blobs)
        self.ops = ops
        self.file = file
        self.origins_of: dict[Value, tuple[Origin, ...]] = {}
        self.spelled: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
        """Attributes that were read, by their op, by how deep it stands, and by their text."""

    def graph(self) -> Graph:
        if self.word() != "graph":
            self.fail("a text that does not start with a graph", "start with: graph name(x: f32[4]) {", 0)
        name = self.name()
        scope = _Scope(0)
        inputs = self.inputs(scope)
        assumed: list[Constraint] = []
        frozen: dict[str, str] = {}
        self.need("{")
        while True:
            self.values(scope)
            start = self.at
            match self.word():
                case "param":
                    self.declare(scope, leaf.PARAM, frozen)
                case "assume":
                    assumed.append(self.assume())
                case "return":
                    break
                case _:
                    self.fail(
                        f"{self.here_at(start)} where a statement starts",
                        "write %0 = op(...), param, assume or return",
                        start,
                    )
        outputs, donated, forward = self.outputs(scope)
        end = self.at
        self.need("}")
        if self.at < len(self.text):
            self.expected("the end of the text", "a text holds one graph")
        declared = tuple([v for v in scope.named.values() if v.op is leaf.PARAM])
        alive = (*inputs, *declared, *walk_into(outputs.values()))
        origins = {v: self.origins_of[v] for v in alive if v in self.origins_of}
        try:
            check_donated(donated, inputs, outputs)
        except GraphError as error:
            self.fail(error.message, error.hint, end)
        return Graph(
            name,
            tuple(inputs),
            outputs,
            origins,
            tuple(assumed),
            donated=donated,
            forward=tuple(forward),
            declared=declared,
            frozen=frozen,
        )

    def here_at(self, at: int) -> str:
        self.at = at
        return self.here()

    def inputs(self, scope: _Scope) -> list[Value]:
        inputs: list[Value] = []
        self.need("(")
        while not self.take(")"):
            if inputs:
                self.need(",")
            inputs.append(self.declare(scope, leaf.INPUT))
        return inputs

    def declare(self, scope: _Scope, op: Op, frozen: dict[str, str] | None = None) -> Value:
        """Read a name and its type: an input or a parameter, which may be frozen for some reason."""
        start, line = self.at, self.line(self.file)
        name = self.name()
        self.need(":")
        value = make(op, (), {"name": name, "type": self.tensor()})
        if name in scope.named:
            self.fail(f"{name!r} is declared twice", "give inputs and parameters names of their own", start)
        scope.named[name] = value
        after = self.at
        if frozen is not None and self.word() == "frozen":
            frozen[name] = self.string()
        else:
            self.at = after
        self.origins(value, line)
        return value

    def assume(self) -> Constraint:
        start = self.at
        relation = self.word()
        if relation not in _RELATIONS:
            self.fail(f"{relation!r} is not a relation of sizes", f"use one of {', '.join(_RELATIONS)}", start)
        sizes = self.sizes()
        if len(sizes) != 2:
            self.fail(f"{len(sizes)} sizes in an assumption", "a relation has two: equals(s, t)", start)
        return Constraint(sizes[0], cast("Relation", relation), sizes[1], self.string())

    def outputs(self, scope: _Scope) -> tuple[dict[str, Value], dict[str, str], list[str]]:
        """Outputs by name, the inputs whose memory some of them take, and the outputs of the forward pass."""
        outputs: dict[str, Value] = {}
        donated: dict[str, str] = {}
        forward: list[str] = []
        while not self.sees("}"):
            if outputs:
                self.need(",")
            start = self.at
            name = self.name()
            if name in outputs:
                self.fail(f"two outputs are named {name!r}", "give each output a name of its own", start)
            self.need("=")
            outputs[name] = self.operand(scope)
            start = self.at
            word = self.word()
            if word == "into":
                donated[name] = self.name()
                start = self.at
                word = self.word()
            if word == "forward":
                forward.append(name)
            else:
                self.at = start
        return outputs, donated, forward

    def values(self, scope: _Scope) -> None:
        """Read the lines that compute something."""
        while True:
            start, line = self.at, self.line(self.file)
            local = self.local()
            if local is None:
                return
            if local[0] == "$" or local in scope.local:
                self.fail(f"{local} is given a value twice", "give each value a name of its own", start)
            self.need("=")
            value = self.expression(scope, start)
            scope.local[local] = value
            self.origins(value, line)

    def expression(self, scope: _Scope, start: int) -> Value:
        at = self.at
        name = self.name()
        if name == "const" and not self.sees("("):
            return make(leaf.CONST, (), {"value": self.literal()})
        op = self.ops.get(name)
        if op is None:
            close = nearest(name[:40], self.ops, most=3)
            hint = f"did you mean {' or '.join(close)}?" if close else "pass the op that declares it in `ops`"
            self.fail(f"there is no op named {name[:40]!r}", hint, at)
        operands = self.operands(scope)
        attrs = self.known_attributes(name, scope) if self.sees("{") else {}
        value = self.build(op, operands, attrs, start)
        self.check_type(value, start)
        return value

    def operands(self, scope: _Scope) -> tuple[Value, ...]:
        self.need("(")
        operands: list[Value] = []
        while not self.take(")"):
            if operands:
                self.need(",")
            operands.append(self.operand(scope))
        return tuple(operands)

    def operand(self, scope: _Scope) -> Value:
        start = self.at
        name = self.reference()
        if name is None:
            name = self.name()
            value = scope.named.get(name)
        else:
            value = scope.local.get(name) if name[0] in "%$" else scope.named.get(name)
        if value is None:
            self.fail(f"{name[:40]!r} is not known here", "a value is read after the line that names it", start)
        return value

    def build(self, op: Op, operands: tuple[Value, ...], attrs: dict[str, Any], start: int) -> Value:
        try:
            return make(op, operands, op.normal(operands, attrs))
        except DovetailError as error:
            self.fail(error.message, error.hint or f"change the operands or attributes of {op.name}", start)
        except Exception as error:  # a type rule takes attributes as they were built; these were not
            self.fail(f"{op.name} cannot be built: {error}", "check its number of operands and its attributes", start)

    def check_type(self, value: Value, start: int) -> None:
        """Check that the type is the one that is stated, or else one that could be."""
        inferred = value.known_type
        stated = self.take(":")
        at = self.at
        if inferred is None or (stated and self.sees("?")):
            self.fail("a value without a type", "patterns are printed for people and cannot be read back", at)
        if not stated:
            try:
                attribute.check_type(inferred)
            except GraphError as error:
                self.fail(error.message, error.hint, start)
        elif (type := self.type()) != inferred:
            self.fail(f"the type is stated as {type}, and {value.op.name} gives {inferred}", "correct or omit it", at)

    def origins(self, value: Value, line: Origin | None) -> None:
        """Read the origins after a value, or else take its line."""
        stated: list[Origin] = []
        while self.take("@"):
            at = self.at
            kind: Any = self.word()
            if kind not in _ORIGINS:
                self.fail(f"{kind!r} is not a kind of origin", f"use one of {', '.join(_ORIGINS)}", at)
            stated.append(Origin(kind, self.string()))
        if not stated and line is not None:
            stated.append(line)
        if stated:
            self.origins_of[value] = merge(self.origins_of.get(value, ()), stated)

    def known_attributes(self, op: str, scope: _Scope) -> dict[str, Any]:
        """Attributes in braces. They read nothing outside: where layers repeat, each spelling is understood once."""
        spelled = self.spelled.setdefault((op, scope.depth), {})
        start = self.at
        for text, attrs in spelled.items():
            if self.text.startswith(text, start):
                self.at += len(text)
                self.skip()
                return dict(attrs)
        self.need("{")
        attrs = self.attributes(scope)
        # Where lines are origins, those of a body are its own.
        if not self.file and len(spelled) < _MOST_SPELLED:
            spelled[self.text[start : self.at].rstrip()] = attrs
        return dict(attrs)

    def attributes(self, scope: _Scope) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        while not self.take("}"):
            if attrs:
                self.need(",")
            start = self.at
            name = self.name()
            if name in attrs:
                self.fail(f"the attribute {name!r} is given twice", "give each attribute once", start)
            self.need("=")
            attrs[name] = self.attribute(scope, scope.depth)
        return attrs

    def attribute(self, scope: _Scope, depth: int) -> Any:
        if depth >= attribute.DEEPEST:
            self.fail(f"more than {attribute.DEEPEST} levels inside each other", "take some of it apart")
        number = self.number()
        if number is not None:
            return number
        if self.sees('"'):
            return self.string()
        if self.sees("("):
            return self.tuple(scope, depth + 1)
        start = self.at
        word = self.word()
        if word is None:
            self.expected("an attribute", "write a number, text in quotes, a tuple, a dtype, a type or size(s)")
        if word in _WORDS:
            if not self.sees("["):
                return _WORDS[word]
            self.at = start
            return self.tensor()
        match word:
            case "size":
                sizes = self.sizes()
                return sizes[0] if len(sizes) == 1 else self.fail("a size of several", "write one: size(2*s)", start)
            case "const":
                return self.literal()
            case "graph":
                return self.subgraph(_Scope(depth + 1))
            case _:
                self.fail(f"{word[:40]!r} is not an attribute", "put text in quotes; write a symbol as size(s)", start)

    def tuple(self, scope: _Scope, depth: int) -> tuple[Any, ...]:
        start = self.at
        self.need("(")
        items: list[Any] = []
        while not self.take(")"):
            if items:
                self.need(",")
                if self.take(")"):
                    break
            items.append(self.attribute(scope, depth))
            if len(items) > attribute.LONGEST_TUPLE:
                self.fail("a tuple that is too long", f"tuples have up to {attribute.LONGEST_TUPLE} items", start)
        return tuple(items)

    def subgraph(self, scope: _Scope) -> Subgraph:
        """Arguments in order, values, results; nothing outside is seen."""
        arguments: list[TensorType] = []
        self.need("(")
        while not self.take(")"):
            if arguments:
                self.need(",")
            start, line = self.at, self.line(self.file)
            local = self.local()
            if local is None or local != f"${len(arguments)}":
                self.fail(f"{local!r} where an argument is declared", f"write ${len(arguments)}: and its type", start)
            self.need(":")
            arguments.append(self.tensor())
            scope.local[local] = leaf.argument(len(arguments) - 1, arguments[-1])
            self.origins(scope.local[local], line)
        self.need("{")
        self.values(scope)
        if self.word() != "return":
            self.expected("return", "a sub-graph ends with: return %0")
        results: list[Value] = []
        while not self.take("}"):
            if results:
                self.need(",")
            results.append(self.operand(scope))
        return Subgraph(tuple(arguments), tuple(results))
