"""LLVM text without what a builder is free to choose: names of values, labels and metadata, marks, comments."""

from __future__ import annotations

import re

_MARK = re.compile(r"_[0-9a-f]{20}(?![0-9a-f])")
_TOKEN = re.compile(r'"[^"]*"|;.*|[%@](?:"[^"]*"|[\w.$-]+)|!\d+')
_LABEL = re.compile(r'(?:"[^"]*"|[\w.$-]+)(?=:)')


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
            case _:
                return token

    declared: set[str] = set()
    lines: list[str] = []
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("define "):
            names.clear()
        label = _LABEL.match(line)
        if label is not None:
            line = names.setdefault(label[0], str(len(names))) + line[label.end() :]
        line = _TOKEN.sub(renamed, line).rstrip()
        if line.startswith("declare "):
            declared.add(line)
        elif line:
            lines.append(line)
    return "\n".join([*sorted(declared), *lines]) + "\n"
