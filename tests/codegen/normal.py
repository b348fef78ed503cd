"""LLVM text without what a builder is free to choose: names of values, labels and metadata, marks, comments."""

from __future__ import annotations

import re

_MARK = re.compile(r"_[0-9a-f]{20}(?![0-9a-f])")
_TOKEN = re.compile(r'^define |^\s*(?:"[^"]*"|[\w.$-]+):|"[^"]*"|;.*|[%@](?:"[^"]*"|[\w.$-]+)|!\d+', re.MULTILINE)


def unmarked(name: str) -> str:
    """The name of a function without the hash of its content."""
    return _MARK.sub("", name)


def normalised(text: str) -> str:
    """A module that equals another if the two differ in names alone.

    Values and labels are numbered within each function, metadata within the module, both in the order in which they
    appear. Functions keep their names without hashes. Declarations come first, sorted. The order of instructions, their
    flags and types stay.
    """
    metadata: dict[str, str] = {}
    names: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        token = found[0]
        match token[0]:
            case "%":
                return "%" + names.setdefault(token[1:], str(len(names)))
            case "@":
                return unmarked(token)
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
