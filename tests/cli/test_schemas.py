"""The JSON Schemas in the package: one for each command that prints JSON. `Said.data` checks every output by them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from dovetail.cli.dispatch import COMMANDS
from dovetail.report.record import MissedEntry, Node
from tests.cli.commands import SMALL, Shell
from tests.cli.schemas import problems, schema_of
from tests.golden import Golden

EXPORTED = Path(__file__).parents[1] / "data" / "exporters" / "bert__ts14__eager__dynamic.onnx"
"""A model with symbolic sizes, and rewrites of what no node of its file is the origin of."""
JSON = [command.name for command in COMMANDS if command.prints_json]


def test_there_is_a_schema_for_each_command_that_prints_json() -> None:
    found = {path.name for path in (files("dovetail.cli") / "schemas").iterdir()}
    assert found == {f"{name}.json" for name in JSON}


def schema_of_type(kind: Any) -> dict[str, Any]:
    """The schema of a field: a time that is no number is null."""
    if get_origin(kind) is tuple:
        return {"type": "array", "items": schema_of_type(get_args(kind)[0])}
    if get_origin(kind) is Mapping:
        return {"type": "object", "additionalProperties": schema_of_type(get_args(kind)[1])}
    names = {str: "string", int: "integer", float: ["number", "null"], bool: "boolean"}
    return {"type": names[kind]}


def test_a_miss_in_the_schema_is_what_its_fields_are(golden: Golden) -> None:
    """A new field is one in `MissedEntry`, and `make golden`."""
    properties: dict[str, Any] = {}
    kinds = get_type_hints(MissedEntry)
    for one in fields(MissedEntry):
        if kinds[one.name] is Node:
            properties |= {name: {"type": "string"} for name in ("node", "op", "where")}
        else:
            properties[one.name] = schema_of_type(kinds[one.name])
    schema = json.loads(json.dumps(schema_of("explain")))
    for name in ("missed", "near"):
        schema["properties"][name]["items"] = {
            "type": "object", "properties": properties, "required": list(properties)
        }  # fmt: skip
    golden.file("src/dovetail/cli/schemas/explain.json", json.dumps(schema, indent=1) + "\n")


@pytest.mark.parametrize("name", JSON)
def test_every_schema_says_its_version(name: str) -> None:
    schema = schema_of(name)
    for one in schema.get("anyOf", [schema]):
        assert one["properties"]["schema_version"] == {"const": 1} and "schema_version" in one["required"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        ["explain", SMALL["bert"], "--all"],
        ["plan", SMALL["unet"]],
        ["plan", "llama:layers=1,hidden=64,heads=4,kv_heads=2,inner=96,vocabulary=100"],
        ["verify", str(EXPORTED)],
        ["run", SMALL["bert"], "--random", "0"],
        ["quantize", SMALL["llama"]],
        ["catalog"],
        ["operators", "MatMul"],
        ["cache", "status"],
        ["doctor"],
        ["diff", SMALL["unet"], SMALL["unet"]],
    ],
    ids=lambda line: f"{line[0]}-{line[-1].rpartition('/')[2][:6]}",
)
def test_outputs_are_as_their_schemas_say(shell: Shell, line: list[str]) -> None:
    said = shell(*line, "--json")
    assert said.data["schema_version"] == 1 and not list(problems(said.data, schema_of(line[0])))


def test_the_checker_finds_what_is_wrong() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "names": {"type": "array", "items": {"type": ["string", "null"]}}},
        "required": ["n"],
        "additionalProperties": {"type": "number"},
    }
    assert not list(problems({"n": 1, "names": ["x", None], "other": 0.5}, schema))
    assert list(problems({"names": [1], "other": "x"}, schema)) == [
        "$ has no n",
        "$.names[0] is 1, and no string or null",
        '$.other is "x", and no number',
    ]
    assert list(problems(True, {"type": "integer"})) and list(problems(2, {"const": 1}))
    assert not list(problems(1, {"anyOf": [{"type": "string"}, {"type": "integer"}]}))
