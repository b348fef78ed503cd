"""What a class of the loop language declares of its fields, and all that follows from it: walks, rewrites, data flow.

Each statement and expression names the role of each of its fields, once, where it is defined: its bodies, expressions
and records, the names that it sets and reads, the tensors that it reads and writes and where, its barriers. No pass
lists statements by their kinds to look into them, so that a new one is its class alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from dovetail.dataclass import dataclass

if TYPE_CHECKING:
    from dovetail.ir.dim import Size
    from dovetail.kernels.loops.ir import Expr, Feature, Statement, Tensor

T = TypeVar("T")
Access = tuple["Tensor", tuple["Expr", ...]]
"""A tensor and an index. The index is empty where all of a tensor is meant, such as accumulators in registers."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a field is."""

    kind: Literal["data", "size", "body", "part", "tensor", "name", "pointer", "barrier"]
    is_read: bool = False
    is_written: bool = False
    at: str = ""
    """The field that has the index of a tensor."""


Metadata = Mapping[str, Role]


def _metadata(role: Role) -> Metadata:
    return {"role": role}


DATA = _metadata(Role("data"))
"""A number, a dtype or a choice: nothing that another part defines."""
SIZE = _metadata(Role("size"))
"""Sizes, which may be known at run time alone."""
BODY = _metadata(Role("body"))
"""Statements that run inside."""
PART = _metadata(Role("part"))
"""An expression, several, or records of them."""
SETS = _metadata(Role("name", is_written=True))
"""The name of a scalar that is set."""
NAMES = _metadata(Role("name", is_read=True))
"""The name of a scalar that is read."""
CHANGES = _metadata(Role("name", is_read=True, is_written=True))
"""The name of a scalar that is read and set."""
POINTER = _metadata(Role("pointer"))
"""The name of memory."""
BARRIER = _metadata(Role("barrier"))
"""The name of barriers in shared memory, which it arrives at or whose bytes it counts."""
AWAITS = _metadata(Role("barrier", is_read=True))
"""The name of barriers that it waits for."""
MAKES = _metadata(Role("barrier", is_written=True))
"""The name of barriers that it makes."""


MEANT = _metadata(Role("tensor"))
"""A tensor that is meant, and neither read nor written here."""


def reading(at: str = "") -> Metadata:
    """A tensor that is read, and the field that has the index."""
    return _metadata(Role("tensor", is_read=True, at=at))


def writing(at: str = "") -> Metadata:
    """A tensor that is written, and the field that has the index."""
    return _metadata(Role("tensor", is_written=True, at=at))


def updating(at: str = "") -> Metadata:
    """A tensor that is read and written, and the field that has the index."""
    return _metadata(Role("tensor", is_read=True, is_written=True, at=at))


class Layout:
    """The fields of a class by their roles."""

    __slots__ = ("all", "bodies", "children", "places", "roles", "sizes", "strings", "within")

    def __init__(self, kind: type[Any]) -> None:
        self.roles = {f.name: _role(kind, f) for f in fields(kind)}
        self.all = tuple(self.roles)
        self.bodies = self._of("body")
        self.within = self._of("part")[::-1]
        """Expressions and records, the last ones first: a stack has the first ones on top."""
        self.places = tuple([(name, role) for name, role in self.roles.items() if role.kind == "tensor"])
        self.sizes = self._of("size")[::-1]
        self.strings = tuple([(n, r) for n, r in self.roles.items() if r.kind in ("name", "pointer", "barrier")])
        self.children = self._of("body", "part", "tensor")

    def _of(self, *kinds: str) -> tuple[str, ...]:
        return tuple([name for name, role in self.roles.items() if role.kind in kinds])


_PLAIN = frozenset(["int", "bool", "float", "complex", "None", "tuple", "DType", "LoopKind", "Space"])
"""Types of what is data without saying so."""


def _role(kind: type[Any], field: Field[Any]) -> Role:
    """What a field is; one that is not a plain number, dtype or choice must say it."""
    if "role" in field.metadata:
        return field.metadata["role"]
    written = re.sub(r"Literal\[[^]]*\]", "", str(field.type))
    if unknown := {*re.findall(r"\w+", written)} - _PLAIN:
        raise TypeError(
            f"{kind.__name__}.{field.name} does not say what it is, and may be {', '.join(sorted(unknown))}"
        )
    return Role("data")


class _Layouts(dict[type[Any], Layout]):
    def __missing__(self, kind: type[Any]) -> Layout:
        found = self[kind] = Layout(kind)
        return found


_LAYOUTS = _Layouts()


def layout(part: object) -> Layout:
    """What the class of a part declares of its fields."""
    return _LAYOUTS[type(part)]


def bodies(statement: Statement) -> list[tuple[Statement, ...]]:
    """The bodies of a statement; none where it has no statements inside."""
    return [getattr(statement, name) for name in _LAYOUTS[type(statement)].bodies]


def everything(body: Sequence[Statement]) -> Iterator[Statement]:
    """Each statement, with those in its bodies."""
    for statement in body:
        yield statement
        for name in _LAYOUTS[type(statement)].bodies:
            yield from everything(getattr(statement, name))


def within(parts: Iterable[Any], met: set[int] | None = None) -> Iterator[Any]:
    """Statements or expressions, and all expressions and records in them but those of their bodies, each once."""
    pending = [*parts]
    met = set() if met is None else met
    while pending:  # a chain may be longer than Python's stack
        part = pending.pop()
        if id(part) in met:
            continue
        met.add(id(part))
        yield part
        for name in _LAYOUTS[type(part)].within:
            value = getattr(part, name)
            if type(value) is tuple:
                pending += value
            else:
                pending.append(value)


def walk(parts: Sequence[Statement | Expr]) -> Iterator[Any]:
    """Each statement of a body, with the expressions, records and bodies in it, or each part of some expressions; what
    is used twice comes once."""
    met = set[int]()
    for part in everything(cast("Sequence[Statement]", parts)):
        yield from within((part,), met)


def accesses(parts: Iterable[Any]) -> Iterator[tuple[Role, Tensor, tuple[Expr, ...]]]:
    """The tensors of parts, without those of parts in them: how each is accessed, and where."""
    for part in parts:
        for name, role in _LAYOUTS[type(part)].places:
            value = getattr(part, name)
            yield role, getattr(value, "tensor", value), getattr(part, role.at) if role.at else ()


def reads(body: Sequence[Statement | Expr]) -> list[Access]:
    """Every tensor that a body reads, and where."""
    return [(tensor, at) for role, tensor, at in accesses(walk(body)) if role.is_read]


def writes(body: Sequence[Statement]) -> list[Access]:
    """Every tensor that a body writes, and where."""
    return [(tensor, at) for role, tensor, at in accesses(walk(body)) if role.is_written]


def pointers_in(body: Sequence[Statement | Expr]) -> set[str]:
    """The pointers through which a body reads or writes, its own memory included."""
    return {tensor.pointer for _, tensor, _ in accesses(walk(body))}


def sizes(part: Any) -> Iterator[Size]:
    """The sizes of an expression or a statement, of its tensors first, without those of parts in it."""
    own = _LAYOUTS[type(part)]
    for name, _ in own.places:
        yield from sizes(getattr(part, name))
    for name in own.sizes:
        value = getattr(part, name)
        if type(value) is tuple:
            yield from value
        else:
            yield value


def defs(body: Sequence[Statement]) -> set[str]:
    """The names of scalars that a body sets."""
    return _names(everything(body), lambda role: role.is_written)


def uses(parts: Sequence[Statement | Expr]) -> set[str]:
    """The names of scalars that a body or expressions read."""
    return _names(walk(parts), lambda role: role.is_read)


def _names(parts: Iterable[Any], holds: Callable[[Role], bool]) -> set[str]:
    found = {
        getattr(part, name)
        for part in parts
        for name, role in _LAYOUTS[type(part)].strings
        if role.kind == "name" and holds(role)
    }
    return found - {""}


def barriers(body: Sequence[Statement]) -> list[tuple[Role, str]]:
    """The barriers in shared memory that statements make, arrive at or wait for, by their names."""
    named = [(role, s, name) for s in everything(body) for name, role in _LAYOUTS[type(s)].strings]
    return [(role, getattr(s, name)) for role, s, name in named if role.kind == "barrier"]


def needs(body: Sequence[Statement]) -> set[Feature]:
    """What a machine must have for a body to run."""
    return {s.feature for s in everything(body)}


def with_bodies(statement: T, change: Callable[[tuple[Statement, ...]], Sequence[Statement]]) -> T:
    """A statement with other bodies; itself where none changes."""
    names = _LAYOUTS[type(statement)].bodies
    if not names:
        return statement
    bodies = {name: getattr(statement, name) for name in names}
    changed = {name: tuple(change(body)) for name, body in bodies.items()}
    if all([_is_same(changed[name], bodies[name]) for name in names]):
        return statement
    return with_fields(statement, changed)


def _is_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(lambda x, y: x is y, one, other))


def with_fields(part: T, changed: Mapping[str, Any]) -> T:
    """A part with other values of some fields: `replace` for what has many of them."""
    kind = cast(Callable[..., T], type(part))
    return kind(*[changed[n] if n in changed else getattr(part, n) for n in _LAYOUTS[type(part)].all])


def expand(
    body: Sequence[Statement], change: Callable[[Statement], Sequence[Statement] | None]
) -> tuple[Statement, ...]:
    """A body with other statements in place of some; None keeps a statement, and looks into its bodies."""

    def inside(inner: Sequence[Statement]) -> tuple[Statement, ...]:
        found: list[Statement] = []
        for statement in inner:
            instead = change(statement)
            if instead is None:
                found.append(with_bodies(statement, inside))
            else:
                found += instead
        return tuple(found)

    return inside(body)


Done: TypeAlias = dict[int, tuple[Any, Any]]


class Rewriting:
    """A body with other parts in place of some. What a body uses twice stays one object, and what does not change
    stays itself."""

    __slots__ = ()
    done: Done
    """Each part and what became of it, by its identity."""

    def body(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple([self.of(statement) for statement in body])

    def of(self, part: T) -> T:
        found = self.done.get(id(part))
        if found is None:
            changed = self._each(part) if isinstance(part, tuple) else self.changed(part)
            # The part is kept with it, so that no other one takes its identity.
            found = self.done[id(cast(object, part))] = part, changed
        return found[1]

    def _each(self, parts: Any) -> tuple[Any, ...]:
        found = tuple([self.of(x) for x in parts])
        return parts if _is_same(found, parts) else found

    def changed(self, part: Any) -> Any:
        """What one part becomes: an expression, a statement, a record or a tensor."""
        return self.inside(part)

    def inside(self, part: Any) -> Any:
        """A part with what becomes of those within it."""
        changes = self.changes(part)
        return with_fields(part, changes) if changes else part

    def changes(self, part: Any) -> dict[str, Any]:
        """The fields that change, as what is in them does."""
        found: dict[str, Any] = {}
        for name in _LAYOUTS[type(part)].children:
            value = getattr(part, name)
            changed = self.of(value)
            if changed is not value:
                found[name] = changed
        return found


class _Rewriting(Rewriting):
    __slots__ = ("change", "done")

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.change, self.done = change, {}

    def changed(self, part: Any) -> Any:
        found = self.change(part)
        return self.inside(part) if found is None else found


def rewrite(part: T, change: Callable[[Any], Any]) -> T:
    """A body, a statement or an expression with other parts in place of some; None looks into a part."""
    return _Rewriting(change).of(part)
