"""A network to judge: a module, a call of it, the sizes that may change. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Network:
    """A module, a call of it, and what its report must say."""

    module: Any
    args: tuple[Any, ...] = ()
    dynamic: Any = None
    """Names of sizes in the structure of the arguments, by position or by name; None where none changes."""
    fused: dict[str, int] = field(default_factory=dict[str, int])
    """Rules, and how often each fires at least."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Other sizes than the doubled ones to run at, by name."""
    again: tuple[Any, ...] | None = None
    """The arguments of a second call, for a module that keeps a state."""
    exact: Any = None
    """The module in float64, where converting the module does not convert all of it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A network that can be built; `package` is what it needs besides torch."""

    name: str
    kind: str
    package: str
    build: Callable[[], Network]
    note: str = ""

    def __call__(self) -> Network:
        return self.build()


def network(kind: str, package: str = "torch", note: str = "") -> Callable[[Callable[[], Network]], Case]:
    """Declare a network by the function that builds it."""

    def declare(build: Callable[[], Network]) -> Case:
        return Case(build.__name__, kind, package, build, note)

    return declare


def collected(namespace: Mapping[str, Any]) -> tuple[Case, ...]:
    """The networks that a module declares, in the order of its lines."""
    return tuple(v for v in namespace.values() if isinstance(v, Case))
