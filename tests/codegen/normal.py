"""LLVM text without what a builder is free to choose: names of values, labels and metadata, marks, comments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_MARK = re.compile(r"_[0-9a-f]{20}(?![0-9a-f])")
_TOKEN = re.compile(r'^define |^\s*(?:"[^"]*"|[\w.$-]+):|"[^"]*"|;.*|[%@](?:"[^"]*"|[\w.$-]+)|!\d+', re.MULTILINE)
_DEFINED = re.compile(r"^(?:define [^@\n]*)?(@[\w.$-]+)(?=\(| =)", re.MULTILINE)
_CALLEE = re.compile(r"@fn\.[0-9a-f]+")


def unmarked(name: str) -> str:
    """The name of a function without the hash of its content."""
    return _MARK.sub("", name)


def normalised(text: str, functions: Mapping[str, str] | None = None) -> str:
    """A module that equals another if the two differ in names alone.

    Values and labels are numbered within each function, metadata and what the module defines within the module, all in
    the order in which they appear. `functions` has a digest for functions of other modules by name; what else is
    declared keeps its name without its hash. Declarations come first, sorted. The order of instructions, their flags
    and types stay.
    """
    metadata: dict[str, str] = {}
    names: dict[str, str] = {}
    own = dict.fromkeys(_DEFINED.findall(text), "")
    others: Mapping[str, str] = {} if functions is None else functions

    def function(token: str) -> str:
        if token in own:
            own[token] = own[token] or f"@{sum(map(bool, own.values()))}"
            return own[token]
        return f"@fn.{others[token[1:]]}" if token[1:] in others else unmarked(token)

    def renamed(found: re.Match[str]) -> str:
        token = found[0]
        match token[0]:
            case "%":
                return "%" + names.setdefault(token[1:], str(len(names)))
            case "@":
                return function(token)
            case "!":
                return metadata.setdefault(token, f"!{len(metadata)}")
            case ";":
                return ""
            case _ if token == "define ":
                names.clear()
                return token
            case _ if token[-1] == ":":
                return names.setdefault(token.strip()[:-1], str(len(names))) + ":"
            case _:
                return token

    lines = [line for raw in _TOKEN.sub(renamed, text).splitlines() if (line := raw.strip())]
    declared = {line for line in lines if line.startswith("declare ")}
    return "\n".join([*sorted(declared), *(line for line in lines if not line.startswith("declare "))]) + "\n"


def without_callees(text: str) -> str:
    """A normalised module that equals another if the two differ in the functions of other modules alone."""
    return _CALLEE.sub("@fn", text)


def signatures(texts: Iterable[str]) -> dict[str, set[str]]:
    """What modules declare each function as."""
    found: dict[str, set[str]] = {}
    for text in texts:
        for line in re.findall(r"^declare .*$", text, re.MULTILINE):
            name = re.search(r"@([\w.]+)", line)
            assert name is not None, line
            found.setdefault(name[1], set()).add(line)
    return found
