"""The child process that runs Shardy's passes: started once, asked many times, replaced where it dies."""

from __future__ import annotations

import atexit
import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from dovetail.errors import DovetailError

SECONDS = 60.0
"""How long an answer may take."""
PROGRAM = Path(__file__).with_name("shardy.py")


class ShardyError(DovetailError):
    """Shardy's passes are missing in this version of JAX, crashed or did not end."""


class Child:
    """One process of Shardy."""

    def __init__(self) -> None:
        self.of_process = os.getpid()
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        pipe = subprocess.PIPE
        # A pipe that is not read would fill up, and the child would wait.
        self.said = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  # closed with the child
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM)], stdin=pipe, stdout=pipe, stderr=self.said, text=True, env=environment
        )

    def collectives(self, module: str, mesh: Mapping[str, int]) -> dict[str, Any]:
        """The collectives of a module and the operations of a device; a child that fails is of no further use."""
        sent, taken = self.process.stdin, self.process.stdout
        assert sent is not None and taken is not None, "both are pipes"
        try:
            sent.write(json.dumps({"module": module, "mesh": dict(mesh)}) + "\n")
            sent.flush()
        except BrokenPipeError:
            raise self._failed() from None
        with selectors.DefaultSelector() as ready:
            ready.register(taken, selectors.EVENT_READ)
            if not ready.select(SECONDS):
                self.process.kill()
                raise ShardyError(f"Shardy's passes did not end within {SECONDS:.0f} s", hint=_HINT)
        line = taken.readline()
        if not line:
            raise self._failed()
        return json.loads(line)

    def _failed(self) -> ShardyError:
        self.process.kill()
        self.process.communicate()
        self.said.seek(0)
        last = self.said.read().strip().splitlines()
        why = last[-1] if last else f"exit code {self.process.returncode}"
        return ShardyError(f"Shardy's passes failed: {why}", hint=_HINT)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        if not (self.process.stdout is None or self.process.stdout.closed):
            self.process.communicate()
        self.said.close()


_HINT = (
    "with as many devices, collectives are read from the compiled program: set XLA_FLAGS="
    "--xla_force_host_platform_device_count=N before JAX starts"
)
_lock = threading.Lock()
_children: list[Child] = []


def start() -> None:
    """Start the child while other work is done. That of a parent process is not this one's."""
    with _lock:
        if _children and _children[0].of_process != os.getpid():
            _children.clear()
        if not _children:
            _children.append(Child())


def close() -> None:
    """End the child; the next question starts another."""
    with _lock:
        for child in _children:
            if child.of_process == os.getpid():
                child.close()
        _children.clear()


atexit.register(close)


def collectives(module: str, mesh: Mapping[str, int]) -> dict[str, Any]:
    """The collectives that Shardy puts into a module with placements, and the operations of a device."""
    start()
    with _lock:
        child = _children[0]
        try:
            return child.collectives(module, mesh)
        except ShardyError:
            child.close()
            _children.clear()
            raise


__all__ = ["ShardyError", "close", "collectives", "start"]
