"""What takes part in a run: the rank of this process, where the first one listens, and what all must have in common."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.errors import OptionError, PeerError

SECONDS = 10.0
"""How long a peer may be silent."""


@dataclass(frozen=True, slots=True)
class Membership:
    """One of several supervisors."""

    rank: int
    hosts: int
    coordinator: tuple[str, int]
    timeout: float = SECONDS
    """Seconds without a sign of life after which a worker or a peer is lost."""
    joining: float = 60.0
    """Seconds that peers have to come."""
    stall: float = 600.0
    """Seconds that a step may take."""
    restarts: int = 0
    """How often lost workers are started again."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """What all peers must have in common: versions, the model, the mesh."""
    host: str = field(default_factory=socket.gethostname)

    def __post_init__(self) -> None:
        if self.hosts < 1 or not 0 <= self.rank < self.hosts:
            raise OptionError(f"rank {self.rank} of {self.hosts} hosts", hint="ranks count from 0: --rank 0 --hosts 2")
        if not self.timeout > 0 or not self.joining > 0 or not self.stall > 0 or self.restarts < 0:
            raise OptionError(
                f"a timeout of {self.timeout:g} s and {self.restarts} restarts", hint="pass seconds above 0"
            )

    @property
    def hello(self) -> dict[str, Any]:
        """How this supervisor introduces itself."""
        return {"rank": self.rank, "hosts": self.hosts, "host": self.host, "facts": dict(self.facts)}


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended an attempt: which process, at which step, and why."""

    rank: int
    host: str
    step: int
    why: str
    weight: int = 0
    """How likely it is the cause and not a consequence: of several failures the heaviest is told."""
    final: bool = False
    """Whether a restart would fail in the same way."""

    def error(self) -> PeerError:
        hint = "mend what it says and run it again with --resume" if self.final else "--restarts N starts workers again"
        return PeerError(str(self), rank=self.rank, host=self.host, step=self.step, hint=hint)

    def message(self) -> dict[str, Any]:
        return {"failed": [self.rank, self.host, self.step, self.why, self.weight, self.final]}

    @staticmethod
    def of(message: Mapping[str, Any]) -> Failure:
        rank, host, step, why, weight, final = message["failed"]
        return Failure(int(rank), str(host), int(step), str(why), int(weight), bool(final))

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}, step {self.step}: {self.why}"


def is_hello(message: Mapping[str, Any]) -> bool:
    """Whether a supervisor introduces itself."""
    kinds = {"rank": int, "hosts": int, "host": str, "facts": dict}
    return all(isinstance(message.get(name), kind) for name, kind in kinds.items())


def disagreement(mine: Membership, hello: Mapping[str, Any], taken: set[int]) -> str:
    """What a peer has that does not fit; empty where all does."""
    rank, hosts = int(hello["rank"]), hello["hosts"]
    if not 0 < rank < mine.hosts or hosts != mine.hosts:
        return f"rank {rank} of {hosts} hosts joins rank 0 of {mine.hosts}"
    who = f"rank {rank} on {hello['host']}"
    if rank in taken:
        return f"{who} joins, and there is a rank {rank} already"
    theirs: Mapping[str, Any] = hello["facts"]
    for name in sorted({*mine.facts, *theirs}):
        ours, other = mine.facts.get(name, "none"), theirs.get(name, "none")
        if ours != other:
            return f"{who} has {name} {other}, and rank 0 on {mine.host} has {ours}"
    return ""


__all__ = ["Failure", "Membership", "disagreement", "is_hello"]
