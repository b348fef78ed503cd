"""Donation: an output that is written into the memory of an input, as a KV cache or the state of training is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.errors import GraphError
from dovetail.ir.value import Value


def check_donated(donated: Mapping[str, str], inputs: Iterable[Value], outputs: Mapping[str, Value]) -> None:
    """Raise unless each donation joins an output and an input of one type, and no input is donated twice."""
    declared = {str(v.attrs["name"]): v for v in inputs}
    takers: dict[str, str] = {}
    for name, source in donated.items():
        value, taken = outputs.get(name), declared.get(source)
        if value is None:
            raise GraphError(f"{name!r} takes the memory of {source!r}, and is no output", hint=_listed(outputs))
        if taken is None:
            raise GraphError(f"the output {name} takes the memory of {source!r}, no input", hint=_listed(declared))
        if value.type != taken.type:
            raise GraphError(
                f"the output {name} is {value.type}, and the input {source} that it takes the memory of {taken.type}",
                hint="donate an input of the output's own type",
            )
        other = takers.setdefault(source, name)
        if other != name:
            raise GraphError(
                f"the input {source} is donated to {other} and to {name}", hint="donate each input to one output"
            )


def _listed(names: Iterable[str]) -> str:
    return f"there are {', '.join(names) or 'none'}"


__all__ = ["check_donated"]
