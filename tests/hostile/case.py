"""A hostile file: how it is made, what is hostile about it, and how it must end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

Made = Path | bytes | onnx.ModelProto
"""A file that the builder wrote itself, the bytes of one, or a model to write."""
Builder = Callable[[Path], Made]


@dataclass(frozen=True, slots=True)
class Case:
    """One file. `ends` names the errors that it may end in; none where it must load."""

    name: str
    story: str
    build: Builder
    ends: tuple[str, ...]
    says: str
    stage: str
    suffix: str

    def file(self, folder: Path) -> Path:
        """The path of the file, once it is written."""
        made = self.build(folder)
        if isinstance(made, Path):
            return made
        path = folder / f"model{self.suffix}"
        path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
        return path


def hostile(
    *ends: str, says: str = "", stage: str = "load", suffix: str = ".onnx"
) -> Callable[[Callable[..., Made]], Case]:
    """Declare a file by its builder. `says` is part of the message; `stage` is load, compile or run."""

    def declare(build: Callable[..., Made]) -> Case:
        story = (build.__doc__ or "").strip().split("\n")[0]
        return Case(build.__name__, story, build, ends, says, stage, suffix)

    return declare


def variants(
    base: Callable[..., Made],
    each: Mapping[str, tuple[Any, ...]],
    *ends: str,
    says: str = "",
    stage: str = "load",
    suffix: str = ".onnx",
) -> tuple[Case, ...]:
    """One case for each name: the builder with these arguments behind the folder."""

    def of(name: str, arguments: tuple[Any, ...]) -> Case:
        story = f"{(base.__doc__ or '').strip().split(chr(10))[0]} {name.replace('_', ' ')}"
        return Case(
            f"{base.__name__}_{name}", story, lambda folder: base(folder, *arguments), ends, says, stage, suffix
        )

    return tuple(of(name, arguments) for name, arguments in each.items())


def collected(namespace: Mapping[str, Any]) -> tuple[Case, ...]:
    """The cases that a module declares, in the order of its lines."""
    found: list[Case] = []
    for value in namespace.values():
        if isinstance(value, Case):
            found.append(value)
        elif isinstance(value, tuple):
            found += [case for case in value if isinstance(case, Case)]  # pyright: ignore[reportUnknownVariableType]
    return tuple(found)
