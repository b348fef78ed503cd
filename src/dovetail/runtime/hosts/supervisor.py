"""A supervisor: starts the worker of a host, watches it and its peers, and starts all again from a checkpoint.

Workers hold JAX, which may abort or block for ever where a peer is lost. A supervisor holds no JAX: it kills a worker
that is of no further use, and says which process was lost, on which host and at which step.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from dovetail.runtime.hosts.gathering import free_port, gathered, joined, listener
from dovetail.runtime.hosts.membership import Failure, Membership
from dovetail.runtime.hosts.messages import Connection, Lines
from dovetail.runtime.hosts.worker import Assignment

WORKER = (sys.executable, "-m", "dovetail.cli.worker")
BEATS = 5
"""Signs of life within a timeout."""
GRACE = 0.5
"""Seconds in which further failures arrive: the first is often a consequence of another. As long as no
cause is among them, the first supervisor waits longer, since a host may be busy."""
CONSEQUENCE, UNCLEAR, CAUSE = 0, 1, 2


class Worker:
    """The process that computes."""

    def __init__(self, program: Sequence[str], command: Sequence[str], assignment: Assignment) -> None:
        told, tells = os.pipe()
        stays, life = os.pipe()
        self.lines, self.life = Lines(told), life
        self.step, self.is_done = -1, False
        self.heard = self.moved = time.monotonic()
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        with os.fdopen(tells, "wb"), os.fdopen(stays, "rb"):
            self.process = subprocess.Popen(
                [*program, assignment.text(tells, stays), *command],
                pass_fds=(tells, stays),
                stdin=subprocess.DEVNULL,
                env=environment,
            )

    def close(self) -> None:
        """End the process, whatever it does."""
        with suppress(OSError):
            os.close(self.life)
        with suppress(OSError):
            self.process.kill()
        self.process.wait()
        with suppress(OSError):
            os.close(self.lines.descriptor)


class Supervisor:
    """One of the supervisors of a run; `told` is given lines for people."""

    def __init__(
        self,
        mine: Membership,
        command: Sequence[str],
        told: Callable[[str], object],
        program: Sequence[str] = WORKER,
    ) -> None:
        self.mine, self.command, self.told, self.program = mine, command, told, program
        self.peers: dict[int, Connection] = {}
        self.names: dict[int, str] = {}
        self.steps: dict[int, int] = {}
        self.heard: dict[int, float] = {}
        self.done: set[int] = set()

    def run(self) -> None:
        """Run the command on all hosts; `PeerError` where it was lost more often than it may be started again."""
        server = listener(self.mine) if self.mine.rank == 0 else None
        try:
            for attempt in range(self.mine.restarts + 1):
                failure = self._attempt(attempt, server)
                if failure is None:
                    return
                if failure.final or attempt == self.mine.restarts:
                    raise failure.error()
                self.told(f"{failure}; restart {attempt + 1} of {self.mine.restarts} from the last checkpoint")
        finally:
            if server is not None:
                server.close()

    def _attempt(self, attempt: int, server: Any) -> Failure | None:
        mine = self.mine
        self.names, self.done = {}, set()
        if server is not None:
            self.peers = gathered(mine, server)
            start: dict[str, Any] = {
                "address": f"{mine.coordinator[0]}:{free_port(mine.coordinator[0])}",
                "attempt": attempt,
            }
            for connection in self.peers.values():
                connection.send({"start": {**start, "host": mine.host}})
        else:
            connection, start = joined(mine)
            self.peers, self.names = {0: connection}, {0: str(start["host"])}
        now = time.monotonic()
        self.heard, self.steps = dict.fromkeys(self.peers, now), dict.fromkeys(self.peers, -1)
        assignment = Assignment(mine.rank, mine.hosts, start["address"], int(start["attempt"]), mine.timeout, mine.host)
        worker = Worker(self.program, self.command, assignment)
        try:
            failure = self._watched(worker)
            return failure if failure is None else self._verdict(failure, worker)
        finally:
            worker.close()
            for connection in self.peers.values():
                connection.close()

    def _watched(self, worker: Worker) -> Failure | None:
        """Watch until all are done, or one is lost."""
        beat = self.mine.timeout / BEATS
        next_beat = 0.0
        with selectors.DefaultSelector() as ready:
            ready.register(worker.lines, selectors.EVENT_READ)
            for connection in self.peers.values():
                ready.register(connection.lines, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if now >= next_beat:
                    next_beat = now + beat
                    self._beat(worker)
                for key, _ in ready.select(max(min(next_beat - now, beat), 0.01)):
                    if isinstance(key.fileobj, Lines) and not key.fileobj.is_open:
                        ready.unregister(key.fileobj)
                failure = self._heard(worker) or self._lost(worker)
                if failure is not None:
                    return failure
                for lines in (worker.lines, *(c.lines for c in self.peers.values())):
                    if not lines.is_open:
                        with suppress(KeyError, ValueError):
                            ready.unregister(lines)
                if self._all_done(worker):
                    return None

    def _all_done(self, worker: Worker) -> bool:
        if self.mine.rank:
            return 0 in self.done
        if not worker.is_done or len(self.done) < len(self.peers):
            return False
        for connection in self.peers.values():
            connection.send({"done": 0})
        return True

    def _beat(self, worker: Worker) -> None:
        said = {"beat": worker.step, "host": self.mine.host}
        if worker.is_done and self.mine.rank:
            said = {"done": self.mine.rank, **said}
        for connection in self.peers.values():
            connection.send(said)

    def _heard(self, worker: Worker) -> Failure | None:
        """Read what the worker and the peers say; gives the first failure among it."""
        for message in worker.lines.read():
            worker.heard = time.monotonic()
            step = int(message.get("step", worker.step))
            if step != worker.step:
                worker.step, worker.moved = step, worker.heard
            if "done" in message:
                worker.is_done = True
                self._beat(worker)
            if "error" in message:
                final = bool(message["final"])
                return self._mine(worker, str(message["error"]), CAUSE if final else CONSEQUENCE, final=final)
        for rank, connection in self.peers.items():
            for message in connection.lines.read():
                self.heard[rank] = time.monotonic()
                self.names[rank] = str(message.get("host", self.names.get(rank, "")))
                self.steps[rank] = int(message.get("beat", self.steps[rank]))
                if "failed" in message:
                    return Failure.of(message)
                if "done" in message:
                    self.done.add(rank)
        return None

    def _lost(self, worker: Worker) -> Failure | None:
        """A worker or a peer that is dead, silent or stuck."""
        now, mine = time.monotonic(), self.mine
        died = self._died(worker)
        if died is not None:
            return died
        # A worker imports JAX before its first sign.
        most = mine.joining if worker.step < 0 else mine.timeout
        if now - worker.heard > most and not worker.is_done:
            return self._mine(worker, f"the worker was silent for {most:g} s: stopped, or stuck", CAUSE)
        if now - worker.moved > mine.stall and not worker.is_done:
            return self._mine(worker, f"the step took longer than {mine.stall:g} s", UNCLEAR)
        for rank, connection in self.peers.items():
            if rank in self.done:
                continue
            if not connection.lines.is_open:
                return self._theirs(rank, "its supervisor closed the connection: killed, or its host is lost")
            if now - self.heard[rank] > mine.timeout:
                return self._theirs(rank, f"its supervisor was silent for {mine.timeout:g} s: stopped, or lost")
        return None

    def _died(self, worker: Worker) -> Failure | None:
        """The end of a worker that was not done. JAX aborts where another process is lost."""
        code = worker.process.poll()
        if code is None or worker.is_done:
            return None
        weight = CAUSE if code < 0 and code != -signal.SIGABRT else CONSEQUENCE
        return self._mine(worker, f"the worker {_ended(code)}", weight)

    def _mine(self, worker: Worker, why: str, weight: int, *, final: bool = False) -> Failure:
        return Failure(self.mine.rank, self.mine.host, worker.step, why, weight, final)

    def _theirs(self, rank: int, why: str) -> Failure:
        return Failure(rank, self.names.get(rank, "its host"), self.steps[rank], why, CAUSE)

    def _verdict(self, failure: Failure, worker: Worker) -> Failure:
        """The failure that all tell: the first supervisor chooses among those that arrive."""
        found = [failure]
        died = self._died(worker)
        if died is not None:
            found.append(died)  # a peer may tell the consequence before this host has seen the cause
        for one in found:
            for connection in self.peers.values():
                connection.send(one.message())
        now = time.monotonic()
        first, ends = now + GRACE, now + (self.mine.timeout / 2 if self.mine.rank == 0 else GRACE + self.mine.timeout)
        while time.monotonic() < max(first, ends):
            time.sleep(0.02)
            if died is None and (died := self._died(worker)) is not None:
                # The connections of a killed process close before its end can be seen.
                found.append(died)
                for connection in self.peers.values():
                    connection.send(died.message())
            for connection in self.peers.values():
                for message in connection.lines.read():
                    if "verdict" in message:
                        return Failure.of(message["verdict"])
                    if "failed" in message:
                        found.append(Failure.of(message))
            if self.mine.rank and not self.peers[0].lines.is_open:
                break
            if self.mine.rank == 0 and time.monotonic() > first and _has_cause(found):
                break
        chosen = max(found, key=lambda f: f.weight)
        for connection in self.peers.values():
            connection.send({"verdict": chosen.message()})
        return chosen


def _has_cause(found: Sequence[Failure]) -> bool:
    return any(f.weight == CAUSE for f in found)


def _ended(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


__all__ = ["Supervisor", "Worker"]
