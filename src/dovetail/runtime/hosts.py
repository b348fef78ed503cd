"""One process of several hosts: a parent that starts a worker, ends it where it is stuck, and starts it again.

Workers meet by `jax.distributed`, which ends all of them where one is lost. A parent holds no JAX: it outlives its
worker, says at which step that one ended and why, and knows nothing of other hosts.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.errors import DeviceError, DovetailError, OptionError, PeerError

PAUSE = 0.5
"""Seconds between two tries to meet the others."""


@dataclass(frozen=True, slots=True)
class Member:
    """The place of one host in a run of several."""

    rank: int
    hosts: int
    coordinator: str
    """HOST:PORT at which rank 0 listens."""
    host: str
    timeout: float = 10.0
    """Seconds without a sign of life after which a worker is lost."""
    joining: float = 60.0
    """Seconds in which all workers must meet."""
    restarts: int = 0
    """How often a lost worker starts again."""
    attempt: int = 0

    def __post_init__(self) -> None:
        if self.hosts < 1 or not 0 <= self.rank < self.hosts:
            raise OptionError(f"rank {self.rank} of {self.hosts} hosts", hint="ranks count from 0: --rank 0 --hosts 2")
        if not self.timeout > 0 or not self.joining > 0 or self.restarts < 0:
            raise OptionError(
                f"timeouts of {self.timeout:g} and {self.joining:g} s and {self.restarts} restarts",
                hint="pass seconds above 0 and restarts from 0 on",
            )


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt ended."""

    step: int
    why: str
    final: bool
    """Whether another attempt would fail in the same way."""
    met: bool
    """Whether the worker had met all others: only then a new attempt is a restart."""


def supervise(mine: Member, program: Sequence[str], command: Sequence[str], say: Callable[[str], object]) -> None:
    """Run a worker until it is done; `PeerError` where it fails for good or more often than it may start again."""
    restarts, attempt, ends = 0, 0, time.monotonic() + mine.joining
    while True:
        failure = _Worker(mine, attempt, program, command).wait()
        if failure is None:
            return
        told = f"rank {mine.rank} on {mine.host}, step {failure.step}: {failure.why}"
        restarts += failure.met
        if failure.final or restarts > mine.restarts or not (failure.met or time.monotonic() < ends):
            hint = "--restarts N starts it again from the last checkpoint; where a peer was lost, its host says why"
            if failure.final:
                hint = "mend what it says and run it again with --resume"
            elif not failure.met:
                hint = f"start all {mine.hosts} ranks within --join-timeout, and check --coordinator {mine.coordinator}"
            raise PeerError(told, rank=mine.rank, host=mine.host, step=failure.step, hint=hint)
        if failure.met:
            ends = time.monotonic() + mine.timeout + mine.joining  # others may need a timeout to see it
            say(f"{told}; restart {restarts} of {mine.restarts} from the last checkpoint")
        attempt += 1
        time.sleep(PAUSE)


class _Worker:
    """A worker as its parent sees it."""

    def __init__(self, mine: Member, attempt: int, program: Sequence[str], command: Sequence[str]) -> None:
        self.mine, self.step, self.met, self.failed = mine, -1, False, dict[str, Any]()
        self.reads, writes = os.pipe()
        ends_with_us, self.life = os.pipe()
        described = {**asdict(mine), "attempt": attempt, "writes": writes, "life": ends_with_us}
        with os.fdopen(writes, "wb"), os.fdopen(ends_with_us, "rb"):
            self.process = subprocess.Popen(
                [*program, json.dumps(described), *command],
                pass_fds=(writes, ends_with_us),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            )

    def wait(self) -> Failure | None:
        """Wait for the end of the process, and end one that gives no sign of life; None where it did its work."""
        rest = b""
        try:
            while True:
                # Until it has met the others a worker imports JAX, which keeps its other threads waiting.
                most = self.mine.timeout if self.met else max(self.mine.joining, self.mine.timeout)
                if not select.select([self.reads], [], [], most)[0]:
                    return self._failure(f"the worker was silent for {most:g} s: stopped, or stuck")
                piece = os.read(self.reads, 1 << 16)
                if not piece:
                    break
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    sign: dict[str, Any] = json.loads(line)
                    self.step, self.met = int(sign["step"]), bool(sign["met"])
                    self.failed = sign if "error" in sign else self.failed
            code = self.process.wait()
            if self.failed:
                return self._failure(str(self.failed["error"]), final=bool(self.failed["final"]))
            return None if code == 0 else self._failure(f"the worker {self._ended(code)}")
        finally:
            with suppress(OSError):
                self.process.kill()
            self.process.wait()
            os.close(self.reads)
            os.close(self.life)

    def _failure(self, why: str, *, final: bool = False) -> Failure:
        return Failure(max(self.step, 0), why, final, self.met)

    def _ended(self, code: int) -> str:
        """How the process ended, in words. JAX aborts where a peer is lost or does not come."""
        if code >= 0:
            return f"ended with exit code {code}"
        name = f"signal {-code}"
        with suppress(ValueError):
            name = signal.Signals(-code).name
        if code != -signal.SIGABRT:
            return f"was ended by {name}"
        if not self.met:
            return f"did not meet all others at {self.mine.coordinator} within {self.mine.joining:g} s"
        return f"was ended by {name}, as JAX ends it where a peer is lost"


class Reporter:
    """Tells the parent of this worker that it is alive and at which step, and ends it with its parent."""

    def __init__(self, text: str) -> None:
        described: dict[str, Any] = json.loads(text)
        self._writes, self._life = int(described.pop("writes")), int(described.pop("life"))
        self.member = Member(**described)
        self._step, self._met = 0, False
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    @property
    def is_first(self) -> bool:
        """Whether this worker writes and prints for all."""
        return self.member.rank == 0

    @property
    def again(self) -> bool:
        """Whether another worker was lost before this one."""
        return self.member.attempt > 0

    def met(self) -> None:
        """Say that all workers are there."""
        self._met = True
        self._say({})

    def at(self, step: int) -> None:
        """Say that a step is done."""
        self._step = step
        self._say({})

    def failed(self, error: DovetailError) -> None:
        """Say what went wrong. What a device reports may be the loss of a peer, and goes away with it."""
        self._say({"error": f"{type(error).__name__}: {error}", "final": not isinstance(error, DeviceError)})

    def _say(self, more: dict[str, Any]) -> None:
        with self._lock, suppress(OSError):
            os.write(self._writes, json.dumps({"step": self._step, "met": self._met, **more}).encode() + b"\n")

    def _beat(self) -> None:
        while True:
            self._say({})
            time.sleep(self.member.timeout / 5)

    def _watch(self) -> None:
        """End with the parent, which closes its end of the pipe when it ends."""
        os.read(self._life, 1)
        os._exit(0)


__all__ = ["Member", "Reporter", "supervise"]
