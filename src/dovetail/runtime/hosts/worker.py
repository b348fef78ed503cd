"""A worker's side of the watch: signs of life with the step it is at, and an end when its supervisor ends."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.errors import DeviceError, DovetailError
from dovetail.runtime.hosts.messages import line


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a supervisor gives its worker."""

    rank: int
    hosts: int
    address: str
    """Where the workers meet."""
    attempt: int
    """0 for the first; later ones go on from the last checkpoint."""
    timeout: float
    host: str

    def text(self, tells: int, life: int) -> str:
        """For a command line, with the descriptors to tell through and to watch."""
        return json.dumps({**asdict(self), "tells": tells, "life": life})


class Reporter:
    """Tells the supervisor that the worker is alive, and at which step."""

    def __init__(self, text: str) -> None:
        given: dict[str, Any] = json.loads(text)
        self._tells, self._life = int(given.pop("tells")), int(given.pop("life"))
        self.assignment = Assignment(**given)
        self.step = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    @property
    def is_first(self) -> bool:
        """Whether this worker writes and prints for all."""
        return self.assignment.rank == 0

    @property
    def again(self) -> bool:
        """Whether another worker was lost before this one."""
        return self.assignment.attempt > 0

    def at(self, step: int) -> None:
        """A step is done."""
        self.step = step
        self._tell({"step": step})

    def failed(self, error: DovetailError) -> None:
        """Tell what went wrong. What a device reports may be the loss of a peer, and goes away with it."""
        lost = isinstance(error, DeviceError)
        self._tell({"step": self.step, "error": f"{type(error).__name__}: {error}", "final": not lost})

    def done(self) -> None:
        """Tell that all is done, and wait until the peers are: they may still need this process."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._tell({"step": self.step, "done": True})
        threading.Event().wait()

    def _tell(self, message: dict[str, Any]) -> None:
        with self._lock, suppress(OSError):
            os.write(self._tells, line(message))

    def _beat(self) -> None:
        pause = threading.Event()
        while True:
            self._tell({"step": self.step})
            pause.wait(self.assignment.timeout / 5)

    def _watch(self) -> None:
        """End with the supervisor, which closes its end of the pipe when it ends."""
        os.read(self._life, 1)
        os._exit(0)


__all__ = ["Assignment", "Reporter"]
