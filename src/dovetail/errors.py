"""Every error a user can cause, in one tree. Handlers of Python's own errors catch them where these mean the same.

DovetailError
├── GraphError            a value or graph that does not hold together
│   ├── TypeRuleError     operands or attributes that an op does not take
│   ├── SizeLimitError    a size that is too long, too deep or too large to be written down
│   ├── GradientError     values without a gradient, each with its place
│   ├── TraceError        a declared body that asks what a pattern cannot know
│   └── VerifyError       a graph that breaks a rule of its level, or a rule that is wrong
├── ParseError            text that is not a graph, with line and column; a ValueError
├── LoadError             a file that cannot be read, or is not what it says it is; an OSError and a ValueError
├── BindError             arrays, parameters or symbols that do not fit a program; a ValueError
│   ├── SizeError         sizes that break what a program takes for granted
│   └── OutOfMemoryError  a run that needs more memory than its device has free; a MemoryError
├── DeviceError           a device that failed while it worked; programs on it are bound again
├── PeerError             a process on another host that is lost, stopped, stuck or does not fit
├── OptionError           an unknown pass, rule or setting; a ValueError
│   └── BudgetError       a memory budget below the smallest peak that a plan can have
├── UnsupportedError      an operator, type or target that we do not have; a NotImplementedError
│   └── NeedsValueError   an input or a size whose value decides the structure of a model
├── ServiceError          a request that a server does not finish: it is full, closing or out of time
├── GateError             a required fusion that is missing
└── CheckError            results that differ from those of another runtime, or of the graph as written
"""

from __future__ import annotations

from typing import Any


class DovetailError(Exception):
    """What was found, where, what was expected, and what to do."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        self.message = message
        self.hint = hint
        self.where = where
        # Not super(): the arguments of an OSError are a number, a text and a file.
        Exception.__init__(self, message, hint, where)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        lines = [self.message]
        if self.where:
            lines.append(f"  at: {self.where}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


def _restored(kind: type[DovetailError], args: tuple[Any, ...], attributes: dict[str, Any]) -> DovetailError:
    """An error that was pickled, with all that it tells."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class GraphError(DovetailError):
    """A value or graph that does not hold together."""


class TypeRuleError(GraphError):
    """Operands or attributes that an op does not take."""


class SizeLimitError(GraphError):
    """A size that is too long, too deep or too large to be written down."""


class GradientError(GraphError):
    """Values without a gradient, each with its place."""


class TraceError(GraphError):
    """A declared body that asks what a pattern cannot know."""


class VerifyError(GraphError):
    """A graph that breaks a rule of its level, or a rule that is wrong."""

    exit_code = 3


class ParseError(DovetailError, ValueError):
    """Text that is not a graph, with line and column."""

    def __init__(self, message: str, *, line: int, column: int, hint: str = "") -> None:
        self.line = line
        self.column = column
        super().__init__(message, hint=hint, where=f"line {line}, column {column}")


class LoadError(DovetailError, OSError, ValueError):
    """A file that cannot be read or written, or is not what it says it is."""


class BindError(DovetailError, ValueError):
    """Arrays, parameters or symbols that do not fit a program."""


class SizeError(BindError):
    """Sizes that break what a program takes for granted; `symbols` names those that take part."""

    def __init__(self, message: str, *, symbols: tuple[str, ...], hint: str = "", where: str = "") -> None:
        self.symbols = symbols
        super().__init__(message, hint=hint, where=where)


class OutOfMemoryError(BindError, MemoryError):
    """A run that needs more memory than its device has free; `needed` and `free` are bytes, 0 where unknown."""

    def __init__(self, message: str, *, needed: int, free: int, hint: str = "", where: str = "") -> None:
        self.needed = needed
        self.free = free
        super().__init__(message, hint=hint, where=where)


class DeviceError(DovetailError):
    """A device that failed while it worked; `is_lost` says whether programs on it must be bound again."""

    def __init__(self, message: str, *, is_lost: bool = False, hint: str = "", where: str = "") -> None:
        self.is_lost = is_lost
        super().__init__(message, hint=hint, where=where)


class PeerError(DovetailError):
    """A process on another host that is lost, stopped, stuck or does not fit: its rank, its host and its last step."""

    def __init__(
        self, message: str, *, rank: int, host: str = "", step: int = -1, hint: str = "", where: str = ""
    ) -> None:
        self.rank = rank
        self.host = host
        self.step = step
        super().__init__(message, hint=hint, where=where)


class OptionError(DovetailError, ValueError):
    """An unknown pass, rule or setting."""


class BudgetError(OptionError):
    """A memory budget below the smallest peak that a plan can have; `least` and `budget` are bytes."""

    def __init__(self, message: str, *, least: int, budget: int, hint: str = "", where: str = "") -> None:
        self.least = least
        self.budget = budget
        super().__init__(message, hint=hint, where=where)


class UnsupportedError(DovetailError, NotImplementedError):
    """An operator, type or target that we do not have."""

    exit_code = 2


class NeedsValueError(UnsupportedError):
    """An input or a size whose value decides the structure of a model."""

    def __init__(
        self,
        message: str,
        *,
        inputs: tuple[str, ...],
        sizes: tuple[str, ...] = (),
        hint: str = "",
        where: str = "",
    ) -> None:
        self.inputs = inputs
        self.sizes = sizes
        super().__init__(message, hint=hint, where=where)


class ServiceError(DovetailError):
    """A request that a server does not finish: it is full, closing or out of time; `status` is that of HTTP."""

    def __init__(self, message: str, *, status: int, hint: str = "", where: str = "") -> None:
        self.status = status
        super().__init__(message, hint=hint, where=where)


class GateError(DovetailError):
    """A required fusion that is missing."""

    exit_code = 4


class CheckError(DovetailError):
    """Results that differ from those of another runtime, or of the graph as written."""

    exit_code = 5


__all__ = [
    "BindError",
    "BudgetError",
    "CheckError",
    "DeviceError",
    "DovetailError",
    "GateError",
    "GradientError",
    "GraphError",
    "LoadError",
    "NeedsValueError",
    "OptionError",
    "OutOfMemoryError",
    "ParseError",
    "PeerError",
    "ServiceError",
    "SizeError",
    "SizeLimitError",
    "TraceError",
    "TypeRuleError",
    "UnsupportedError",
    "VerifyError",
]
