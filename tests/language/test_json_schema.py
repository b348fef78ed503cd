"""JSON schemas as grammars: what a schema allows is accepted byte by byte, all else is refused; bad ones are errors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dovetail.errors import OptionError, UnsupportedError
from dovetail.language import grammar as grammar_module
from dovetail.language.json_schema import Matcher, Schema, Vocabulary, grammar_of
from dovetail.language.sampling import Sampler, Sampling

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 3},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2},
        "age": {"type": ["integer", "null"]},
    },
    "required": ["name"],
    "additionalProperties": False,
}
TREE: dict[str, Any] = {
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    "$ref": "#/$defs/node",
}
CASES: list[tuple[Schema, list[str], list[str]]] = [
    (
        True,
        ["1", "-0.5e+3", "[]", '{"a": [null, true]}', '"\\u00e9\\ud83d\\ude00é"'],
        ["", "01", "+1", '"\\ud800"', "nul"],
    ),
    ({"type": "integer"}, ["0", "-12", "7"], ["-0", "1.0", "1e3", "00"]),
    ({"type": "integer", "minimum": 7, "maximum": 120}, ["7", "9", "10", "99", "100", "120"], ["6", "121", "0", "-8"]),
    ({"type": "integer", "minimum": -15, "maximum": 3}, ["-15", "-9", "0", "3"], ["-16", "4", "-20"]),
    ({"type": "integer", "minimum": 25}, ["25", "99", "100", "31415"], ["24", "3"]),
    ({"type": "integer", "maximum": -3}, ["-3", "-10", "-999"], ["-2", "0", "5"]),
    (
        PERSON,
        ['{"name": "abc"}', '{"name":"é日x","tags":["a", "b"],"age":null}', '{\n  "name": "a",\n  "age": 3\n}'],
        [
            "{}",
            '{"name": ""}',
            '{"name": "abcd"}',
            '{"age": 1, "name": "a"}',
            '{"name": "a", "tags": []}',
            '{"name":"a",}',
        ],
    ),
    (TREE, ["{}", '{"next": {"next": {}}}'], ['{"next": 1}', '{"other": {}}']),
    ({"anyOf": [{"const": 1}, {"const": "x"}]}, ["1", '"x"'], ["2", "x"]),
    ({"enum": [1, "a", None], "type": ["string", "null"]}, ['"a"', "null"], ["1"]),
    ({"type": "object", "additionalProperties": {"type": "boolean"}}, ["{}", '{"q": true, "": false}'], ['{"q": 1}']),
    ({"type": "object"}, ["{}", '{"q": [1]}'], ["[]"]),
]


def accepted(schema: Schema, text: str | bytes) -> bool:
    matcher = Matcher(grammar_of(schema))
    raw = text.encode() if isinstance(text, str) else text
    return matcher.accepts(raw) and (matcher.advance(raw), matcher.is_complete)[1]


@pytest.mark.parametrize("index", range(len(CASES)))
def test_what_a_schema_allows_is_accepted_and_all_else_refused(index: int) -> None:
    schema, good, bad = CASES[index]
    for text in good:
        json.loads(text)
        assert accepted(schema, text), text
    for text in bad:
        assert not accepted(schema, text), text


@pytest.mark.slow
def test_integers_between_bounds_are_exactly_those() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        low, high = sorted(int(n) for n in rng.integers(-1200, 1200, 2))
        grammar = grammar_of({"type": "integer", "minimum": low, "maximum": high})
        for n in {*range(low - 12, low + 12), *range(high - 12, high + 12), *rng.integers(-1300, 1300, 40).tolist()}:
            matcher = Matcher(grammar)
            matcher.advance(str(n).encode())
            assert matcher.is_complete == (low <= n <= high), (low, n, high)


IMPOSSIBLE: list[Any] = [
    False,
    {"enum": []},
    {"type": "integer", "minimum": 5, "maximum": 4},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "array", "minItems": 2, "maxItems": 1},
    {"type": "array", "items": False, "minItems": 1},
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
    {"type": "object", "required": ["a"], "additionalProperties": False, "properties": {}},
    {"const": 1, "enum": [2]},
    {
        "$ref": "#/$defs/n",
        "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}},
    },
]
ODD: list[Any] = [3, {"type": "real"}, {"$ref": "#/nowhere"}, {"properties": []}, {"minLength": -1}, {"enum": 3}]
UNBUILT: list[Any] = [
    {"type": "string", "pattern": "a+"},
    {"oneOf": [{}]},
    {"not": {}},
    {"type": "number", "minimum": 0.5},
    {"$ref": "https://example.com/schema"},
    {"type": "array", "uniqueItems": True},
    {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "string"}},
]


@pytest.mark.parametrize("schema", [*IMPOSSIBLE, *ODD], ids=repr)
def test_what_no_text_satisfies_is_an_error(schema: Any) -> None:
    with pytest.raises(OptionError) as caught:
        grammar_of(schema)
    assert caught.value.hint


@pytest.mark.parametrize("schema", UNBUILT, ids=repr)
def test_what_would_not_be_enforced_is_refused(schema: Any) -> None:
    with pytest.raises(UnsupportedError) as caught:
        grammar_of(schema)
    assert caught.value.hint


def test_schemas_that_nest_without_end_are_refused() -> None:
    deep: Any = {}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    with pytest.raises(UnsupportedError):
        grammar_of(deep)


def test_texts_that_nest_without_end_stop_nesting() -> None:
    matcher = Matcher(grammar_of(True))
    depth = 0
    while matcher.accepts(b"[") and depth < 10_000:
        matcher.advance(b"[")
        depth += 1
    assert 50 < depth < 1000 and matcher.accepts(b"]" * depth)


def test_all_tokens_at_once_are_those_one_by_one() -> None:
    rng = np.random.default_rng(0)
    alphabet = b'{}[]":, 0123456789abnmetrufls\\\xc3\xa9\n'
    tokens = [bytes(rng.choice(list(alphabet), rng.integers(0, 5)).tolist()) for _ in range(600)]
    vocabulary = Vocabulary(tokens)
    for begun in (b"", b'{"na', b'{"name": "a', b'{"name": "a", ', b'{"name": "a"}'):
        matcher = Matcher(grammar_of(PERSON))
        matcher.advance(begun)
        wanted = [matcher.accepts(raw) for raw in tokens]
        for _ in range(2):
            assert vocabulary.allowed(matcher, len(tokens)).tolist() == wanted


LONG = "n" * 600
HALF = "\ud800"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"enum": [HALF]}, HALF),
        ({"type": "object", "properties": {HALF: {"const": None}}, "required": [HALF]}, {HALF: None}),
        ({"type": "object", "properties": {LONG: {"const": LONG}}, "required": [LONG]}, {LONG: LONG}),
        ({"$ref": "#/$defs/a%20b/anyOf/1", "$defs": {"a b": {"anyOf": [True, {"const": 3}]}}}, 3),
    ],
)
def test_names_and_values_of_any_kind_are_written_as_json(schema: Schema, value: Any) -> None:
    matcher = Matcher(grammar_of(schema))
    said = json.dumps(value).encode()
    assert matcher.accepts(said)
    matcher.advance(said)
    assert matcher.is_over and json.loads(said) == value


@pytest.mark.parametrize("value", [float("nan"), [float("-inf")], {"a": {1, 2}}])
def test_values_that_json_has_not_are_refused(value: Any) -> None:
    for schema in ({"const": value}, {"enum": [1, value]}):
        with pytest.raises(OptionError):
            grammar_of(schema)
    with pytest.raises(OptionError):
        grammar_of({"required": [1]})


def test_bytes_that_lead_to_the_same_state_are_looked_at_once() -> None:
    """Within a string nearly all tokens may follow: one state stands for all of them."""
    tokens = [bytes(each) for each in np.random.default_rng(0).integers(0x61, 0x7A, (3000, 6), np.uint8)]
    matcher = Matcher(grammar_of({"type": "string"}))
    matcher.advance(b'"a')
    opened = matcher.opened
    assert Vocabulary(tokens).allowed(matcher, len(tokens)).all() and matcher.opened - opened < 3000


@pytest.mark.exhaustive
def test_a_schema_with_too_many_ways_is_refused_before_it_keeps_others_waiting() -> None:
    choices = [{"type": "string", "maxLength": 1000 + i} for i in range(200)]
    matcher = Matcher(grammar_of({"anyOf": choices}))
    matcher.advance(b'"a')
    tokens = [bytes([0x61 + i % 26] * (1 + i // 26)) for i in range(26 * 200)]
    with pytest.raises(UnsupportedError, match="ways"):
        Vocabulary(tokens).allowed(matcher, len(tokens))


def test_states_that_were_forgotten_are_found_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_module, "MOST_STATES", 5)
    said = b'{"name": "ab", "tags": ["a", "b"], "age": 12}'
    matcher = Matcher(grammar_of(PERSON))
    for start in range(0, len(said), 3):
        assert matcher.accepts(said[start:]) and not matcher.accepts(said[start:] + b"x")
        matcher.advance(said[start : start + 3])
    assert matcher.is_complete


@pytest.mark.slow
def test_draws_with_a_constraint_are_draws_from_the_allowed_tokens() -> None:
    logits = np.log(np.array([0.5, 0.2, 0.2, 0.1] + [1e-9] * 60, np.float32))
    allowed = np.zeros(64, bool)
    allowed[[1, 3, 40]] = True
    sampler = Sampler(Sampling(temperature=1.0))
    drawn = [sampler.next(logits, [], lambda t: bool(allowed[t]), lambda: allowed) for _ in range(1500)]
    assert set(drawn) <= {1, 3, 40} and abs(drawn.count(1) / 1500 - 2 / 3) < 0.04
    rare = np.zeros(64, bool)
    rare[50] = True
    assert sampler.next(logits, [], lambda t: bool(rare[t]), lambda: rare) == 50
    with pytest.raises(UnsupportedError):
        sampler.next(logits, [], lambda t: False, lambda: np.zeros(64, bool))
