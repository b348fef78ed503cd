"""A JSON schema as a grammar over bytes. A keyword that is not built is refused: it would not be enforced.

Objects have their listed properties, in the order of the schema; other properties are not generated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote

from dovetail.errors import OptionError, UnsupportedError
from dovetail.language.grammar import Alternative, Bytes, Element, Grammar, Matcher, Rule, Times, Vocabulary, text

Schema = Mapping[str, Any] | bool
_ANNOTATIONS = frozenset(
    ("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "format")
)
"""Keywords that say nothing of what is valid, or hold what others refer to."""
_BY_TYPE: Mapping[str, frozenset[str]] = {
    "object": frozenset(("properties", "required", "additionalProperties")),
    "array": frozenset(("items", "minItems", "maxItems")),
    "string": frozenset(("minLength", "maxLength")),
    "integer": frozenset(("minimum", "maximum")),
    "number": frozenset(),
    "boolean": frozenset(),
    "null": frozenset(),
}
_MOST_RULES, _DEEPEST, _MOST_COUNT = 4096, 64, 1 << 20
_LONG_NAME = 64
_SPACE, _CHARACTER, _VALUE, _DIGIT = Rule("space"), Rule("character"), Rule("value"), Rule("digit")


def grammar_of(schema: Schema) -> Grammar:
    """The texts that a schema allows; one that none satisfies is an error."""
    built = _Builder(schema)
    root = built.rule(schema, 0)
    if built.is_empty(root):
        raise OptionError("a schema that no text satisfies", hint="its conditions contradict each other")
    return Grammar(built.rules, root.name)


def _common() -> dict[str, tuple[Alternative, ...]]:
    """Rules that every grammar has: JSON itself."""
    hexadecimal = Bytes.of((0x30, 0x39), (0x41, 0x46), (0x61, 0x66))
    low_surrogate = (*text("\\u"), Bytes.of(*b"dD"), Bytes.of((0x63, 0x66), (0x43, 0x46)), hexadecimal, hexadecimal)
    more = Bytes.of((0x80, 0xBF))
    digits = Times(_DIGIT, 0, None)
    spaces = Times(Rule("blank"), 0, 16)
    whole = (Bytes.of((0x31, 0x39)), digits)
    return {
        "blank": (text(" "),),
        # Bounded, so that a text cannot be spaces for ever.
        "space": ((), text(" "), (*text("\n"), spaces)),
        "digit": ((Bytes.of((0x30, 0x39)),),),
        "character": (
            (Bytes.of((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7F)),),
            (*text("\\"), Bytes.of(*b'"\\/bfnrt')),
            # No half of a pair alone: texts are UTF-8.
            (*text("\\u"), Bytes.of((0x30, 0x39), *b"abcefABCEF"), hexadecimal, hexadecimal, hexadecimal),
            (*text("\\u"), Bytes.of(*b"dD"), Bytes.of((0x30, 0x37)), hexadecimal, hexadecimal),
            (*text("\\u"), Bytes.of(*b"dD"), Bytes.of(*b"89abAB"), hexadecimal, hexadecimal, *low_surrogate),
            (Bytes.of((0xC2, 0xDF)), more),
            (Bytes.of(0xE0), Bytes.of((0xA0, 0xBF)), more),
            (Bytes.of((0xE1, 0xEC), 0xEE, 0xEF), more, more),
            (Bytes.of(0xED), Bytes.of((0x80, 0x9F)), more),
            (Bytes.of(0xF0), Bytes.of((0x90, 0xBF)), more, more),
            (Bytes.of((0xF1, 0xF3)), more, more, more),
            (Bytes.of(0xF4), Bytes.of((0x80, 0x8F)), more, more),
        ),
        "string": ((*text('"'), Times(_CHARACTER, 0, None), *text('"')),),
        "natural": (text("0"), whole),
        "integer": ((Rule("natural"),), (*text("-"), *whole)),
        "fraction": ((), (*text("."), Times(_DIGIT, 1, 20))),
        "exponent": ((), (Bytes.of(*b"eE"), Rule("sign"), Times(_DIGIT, 1, 3))),
        "sign": ((), (Bytes.of(*b"+-"),)),
        "minus": ((), text("-")),
        "number": ((Rule("minus"), Rule("natural"), Rule("fraction"), Rule("exponent")),),
        "boolean": (text("true"), text("false")),
        "null": (text("null"),),
        "value": tuple([(Rule(kind),) for kind in _BY_TYPE]),
        "pair": ((Rule("string"), _SPACE, *text(":"), _SPACE, _VALUE),),
        "next pair": ((_SPACE, *text(","), _SPACE, Rule("pair")),),
        "object": (
            (*text("{"), _SPACE, *text("}")),
            (*text("{"), _SPACE, Rule("pair"), Times(Rule("next pair"), 0, None), _SPACE, *text("}")),
        ),
        "next value": ((_SPACE, *text(","), _SPACE, _VALUE),),
        "array": (
            (*text("["), _SPACE, *text("]")),
            (*text("["), _SPACE, _VALUE, Times(Rule("next value"), 0, None), _SPACE, *text("]")),
        ),
    }


_JSON = _common()


class _Builder:
    """The rules of one schema while it is read."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.rules = dict(_JSON)
        self._references: dict[str, Rule] = {}

    def rule(self, schema: Schema, depth: int) -> Rule:
        """The rule of a schema."""
        if depth > _DEEPEST:
            raise UnsupportedError(f"a schema of more than {_DEEPEST} levels", hint="use $ref for what recurs")
        if schema is True or schema == {}:
            return _VALUE
        if schema is False:
            return self._new(())
        if not isinstance(cast(object, schema), Mapping):
            raise OptionError(f"a schema that is {_shown(schema)}", hint="it is an object, true or false")
        return self._reference(schema) if "$ref" in schema else self._new(tuple(self._alternatives(schema, depth)))

    def is_empty(self, rule: Rule) -> bool:
        """Whether no text is of a rule: every alternative needs a rule that none is of, or itself."""
        some: set[str] = set()
        while True:
            more = {n for n, alternatives in self.rules.items() if n not in some and _any_written(alternatives, some)}
            if not more:
                return rule.name not in some
            some |= more

    def _new(self, alternatives: tuple[Alternative, ...]) -> Rule:
        if len(self.rules) > _MOST_RULES:
            raise UnsupportedError(f"a schema of more than {_MOST_RULES} parts", hint="make it simpler")
        found = Rule(f"rule {len(self.rules)}")
        self.rules[found.name] = alternatives
        return found

    def _reference(self, schema: Mapping[str, Any]) -> Rule:
        at = schema["$ref"]
        _refuse(schema.keys() - _ANNOTATIONS - {"$ref"}, "next to $ref")
        if not isinstance(at, str) or not at.startswith("#"):
            raise UnsupportedError(f"the reference {_shown(at)}", hint="references are within the schema: #/$defs/name")
        if at not in self._references:
            found: Any = self.root
            for part in at.removeprefix("#").split("/")[1:]:
                found = _part(found, unquote(part).replace("~1", "/").replace("~0", "~"))
            if not isinstance(found, Mapping | bool):
                raise OptionError(f"the reference {_shown(at)} leads nowhere", hint="name a part of the schema")
            # It may refer to itself: its name is known before its alternatives are.
            own = self._references[at] = self._new(())
            self.rules[own.name] = ((self.rule(cast(Schema, found), 1),),)
        return self._references[at]

    def _alternatives(self, schema: Mapping[str, Any], depth: int) -> Iterator[Alternative]:
        if "enum" in schema or "const" in schema:
            _refuse(schema.keys() - _ANNOTATIONS - {"enum", "const", "type"}, "next to enum or const")
            for value in _listed(schema["enum"], "enum") if "enum" in schema else [schema["const"]]:
                if "const" in schema and not _same(value, schema["const"]):
                    continue
                if "type" not in schema or any(_is_of(value, kind) for kind in _types(schema)):
                    yield text(_written(value))
            return
        if "anyOf" in schema:
            _refuse(schema.keys() - _ANNOTATIONS - {"anyOf"}, "next to anyOf")
            for choice in _listed(schema["anyOf"], "anyOf"):
                yield (self.rule(choice, depth + 1),)
            return
        kinds = _types(schema)
        known = _ANNOTATIONS.union(["type"], *[_BY_TYPE[kind] for kind in kinds])
        _refuse(schema.keys() - known, f"of {' or '.join(kinds)}")
        for kind in kinds:
            yield from self._of_type(kind, schema, depth)

    def _of_type(self, kind: str, schema: Mapping[str, Any], depth: int) -> Iterator[Alternative]:
        if not any(key in schema for key in _BY_TYPE[kind]):
            yield (Rule(kind),)
        elif kind == "string":
            least, most = _bounds(schema, "minLength", "maxLength")
            if most is None or least <= most:
                yield (*text('"'), Times(_CHARACTER, least, most), *text('"'))
        elif kind == "integer":
            yield from _integers(schema)
        elif kind == "array":
            yield from self._array(schema, depth)
        elif kind == "object":
            yield from self._object(schema, depth)

    def _array(self, schema: Mapping[str, Any], depth: int) -> Iterator[Alternative]:
        least, most = _bounds(schema, "minItems", "maxItems")
        item = self.rule(schema.get("items", True), depth + 1)
        if least == 0:
            yield (*text("["), _SPACE, *text("]"))
        following = self._new(((_SPACE, *text(","), _SPACE, item),))
        if most is None or (most > 0 and least <= most):
            more = Times(following, max(least - 1, 0), None if most is None else most - 1)
            yield (*text("["), _SPACE, item, more, _SPACE, *text("]"))

    def _object(self, schema: Mapping[str, Any], depth: int) -> Iterator[Alternative]:
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            raise OptionError(f"properties that are {_shown(properties)}", hint="they are schemas by name")
        named = cast(Mapping[str, Schema], properties)
        required = _names(schema.get("required", []))
        others = schema.get("additionalProperties", True)
        if not isinstance(others, bool) or (not named and not required and others):
            yield from self._dictionary(named, required, others, depth)
            return
        unlisted = [name for name in required if name not in named]
        if unlisted and others is False:
            return
        parts = [(name, named[name]) for name in named] + [(name, True) for name in dict.fromkeys(unlisted)]
        yield (*text("{"), *self._properties(parts, frozenset(required), depth), _SPACE, *text("}"))

    def _dictionary(
        self, named: Mapping[str, Schema], required: Sequence[str], others: Schema, depth: int
    ) -> Iterator[Alternative]:
        """Any names, all with values of one schema."""
        if named or required:
            raise UnsupportedError(
                "properties next to a schema of others", hint="set additionalProperties to false, or list no properties"
            )
        pair = self._new(((Rule("string"), _SPACE, *text(":"), _SPACE, self.rule(others, depth + 1)),))
        following = self._new(((_SPACE, *text(","), _SPACE, pair),))
        yield (*text("{"), _SPACE, *text("}"))
        yield (*text("{"), _SPACE, pair, Times(following, 0, None), _SPACE, *text("}"))

    def _properties(
        self, parts: Sequence[tuple[str, Schema]], required: frozenset[str], depth: int
    ) -> tuple[Element, ...]:
        """The properties in order, those that are not required perhaps; commas between those that are there."""
        first: Alternative = ()
        later: Alternative = ()
        for name, schema in reversed(parts):
            value = self.rule(schema, depth + 1)
            # A long name is a rule: what is expected after a space must not be too deep.
            said = text(_written(name))
            pair = (*(said if len(said) < _LONG_NAME else (self._new((said,)),)), _SPACE, *text(":"), _SPACE, value)
            there = (_SPACE, *pair, *later)
            among = (_SPACE, *text(","), _SPACE, *pair, *later)
            optional = name not in required
            first_rule = self._new((there, first) if optional else (there,))
            later_rule = self._new((among, later) if optional else (among,))
            first, later = (first_rule,), (later_rule,)
        return first


def _any_written(alternatives: Sequence[Alternative], some: set[str]) -> bool:
    """Whether an alternative needs only rules that have texts."""

    def is_written(element: Element) -> bool:
        match element:
            case Bytes():
                return element.mask != 0
            case Rule():
                return element.name in some
            case Times():
                return element.least == 0 or element.element.name in some

    return any(all(map(is_written, sequence)) for sequence in alternatives)


def _types(schema: Mapping[str, Any]) -> list[str]:
    """The types that a schema allows; those of its keywords where it names none."""
    said = schema.get("type")
    if said is None:
        return [kind for kind, keys in _BY_TYPE.items() if keys & schema.keys()] or list(_BY_TYPE)
    kinds = [said] if isinstance(said, str) else _listed(said, "type")
    for kind in kinds:
        if not isinstance(kind, str) or kind not in _BY_TYPE:
            raise OptionError(f"the type {_shown(kind)}", hint=f"types are {', '.join(_BY_TYPE)}")
    return kinds


def _bounds(schema: Mapping[str, Any], low: str, high: str) -> tuple[int, int | None]:
    for name in (low, high):
        said = schema.get(name, 0)
        if not isinstance(said, int) or isinstance(said, bool) or not 0 <= said <= _MOST_COUNT:
            raise OptionError(f"{name} is {_shown(said)}", hint=f"it is a count up to {_MOST_COUNT:,}")
    return schema.get(low, 0), schema.get(high)


def _integers(schema: Mapping[str, Any]) -> Iterator[Alternative]:
    """Integers between two bounds, each of which may be missing."""
    low, high = schema.get("minimum"), schema.get("maximum")
    for said in (low, high):
        if said is not None and (not isinstance(said, int) or isinstance(said, bool) or abs(said) >= 10**18):
            raise UnsupportedError(f"a bound of {_shown(said)} for integers", hint="bounds are integers below 10**18")
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        yield from _positive(least, None if low is None else -low, text("-"))
    if high is None or high >= 0:
        if (low or 0) <= 0:
            yield text("0")
        yield from _positive(max(low or 0, 1), high, ())


def _positive(low: int, high: int | None, sign: Alternative) -> Iterator[Alternative]:
    """Integers from `low`, 1 or more, to `high`: by number of digits, then digit by digit."""
    digits = len(str(low))
    while high is None or low <= high:
        end = 10**digits - 1
        if high is None and low == 10 ** (digits - 1):
            yield (*sign, Bytes.of((0x31, 0x39)), *[_DIGIT] * (digits - 1), Times(_DIGIT, 0, None))
            return
        for part in _same_length(str(low), str(end if high is None else min(end, high))):
            yield (*sign, *part)
        low, digits = end + 1, digits + 1


def _same_length(low: str, high: str) -> Iterator[Alternative]:
    """Numbers of equally many digits between two."""
    if not low:
        yield ()
        return
    zero, first, last = 0x30, ord(low[0]), ord(high[0])
    nines, zeros = "9" * (len(low) - 1), "0" * (len(low) - 1)
    if first == last:
        yield from [(Bytes.of(first), *rest) for rest in _same_length(low[1:], high[1:])]
        return
    if low[1:] != zeros:
        yield from [(Bytes.of(first), *rest) for rest in _same_length(low[1:], nines)]
        first += 1
    if high[1:] != nines:
        yield from [(Bytes.of(last), *rest) for rest in _same_length(zeros, high[1:])]
        last -= 1
    if first <= last:
        yield (Bytes.of((first, last)), *[Bytes.of((zero, zero + 9))] * len(zeros))


def _is_of(value: Any, kind: str) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer()
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case _:
            return isinstance(value, Mapping)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def _written(value: Any) -> str:
    """A value as JSON; halves of pairs, which UTF-8 does not have, are escaped."""
    try:
        said = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"the value {_shown(value)} in a schema", hint="JSON has no such value") from error
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", said)


def _part(of: Any, name: str) -> Any:
    """What a part of a reference names; None where there is nothing."""
    if isinstance(of, list):
        listed = cast(list[Any], of)
        return (
            listed[int(name)]
            if name.isascii() and name.isdigit() and len(name) < 9 and int(name) < len(listed)
            else None
        )
    return cast(Mapping[str, Any], of).get(name) if isinstance(of, Mapping) else None


def _names(said: Any) -> list[str]:
    listed = _listed(said, "required")
    if any(not isinstance(name, str) for name in listed):
        raise OptionError(f"required is {_shown(listed)}", hint="it is a list of names")
    return listed


def _listed(said: Any, name: str) -> list[Any]:
    if not isinstance(said, list):
        raise OptionError(f"{name} is {_shown(said)}", hint="it is a list")
    return cast(list[Any], said)


def _refuse(keywords: Any, where: str) -> None:
    if keywords:
        raise UnsupportedError(
            f"{_shown(min(map(str, keywords)))} {where} in a schema", hint="it would not be enforced; leave it out"
        )


def _shown(said: Any) -> str:
    return repr(said)[:60]


__all__ = ["Grammar", "Matcher", "Schema", "Vocabulary", "grammar_of"]
