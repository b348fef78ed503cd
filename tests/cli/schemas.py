"""A checker for the JSON Schemas of the commands: the few keywords that they use, each as the standard has it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, cast

KEYWORDS = frozenset(
    {"$schema", "title", "type", "const", "properties", "required", "items", "additionalProperties", "anyOf"}
)
_TYPES: Mapping[str, tuple[type[Any], ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


@cache
def schema_of(command: str) -> Any:
    """The schema of what a command prints with --json."""
    return json.loads((files("dovetail.cli") / "schemas" / f"{command}.json").read_text(encoding="utf-8"))


def has_type(data: object, name: str) -> bool:
    return isinstance(data, _TYPES[name]) and (name == "boolean" or not isinstance(data, bool))


def problems(data: Any, schema: Mapping[str, Any], at: str = "$") -> Iterator[str]:
    """What in the data is not as the schema says."""
    unknown = set(schema) - KEYWORDS
    assert not unknown, f"{at}: the checker does not know {unknown}"
    if "anyOf" in schema:
        each = [list(problems(data, one, at)) for one in schema["anyOf"]]
        if all(each):
            yield from min(each, key=len)
        return
    if "const" in schema and data != schema["const"]:
        yield f"{at} is {data!r}, not {schema['const']!r}"
    wanted = schema.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    if wanted and not any(has_type(data, name) for name in wanted):
        yield f"{at} is {json.dumps(data)[:60]}, and no {' or '.join(wanted)}"
    if isinstance(data, dict):
        members = cast(dict[str, Any], data)
        yield from (f"{at} has no {name}" for name in schema.get("required", ()) if name not in members)
        known = schema.get("properties", {})
        for name, value in members.items():
            if name in known:
                yield from problems(value, known[name], f"{at}.{name}")
            elif "additionalProperties" in schema:
                yield from problems(value, schema["additionalProperties"], f"{at}.{name}")
    if isinstance(data, list) and "items" in schema:
        for index, value in enumerate(cast(list[Any], data)):
            yield from problems(value, schema["items"], f"{at}[{index}]")


__all__ = ["problems", "schema_of"]
