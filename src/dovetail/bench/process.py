"""A seat's process as its owner sees it: started on n cores, asked, answered, ended."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from dovetail.bench.case import Case
from dovetail.bench.peers import PLACEMENT, Setting

PATIENCE = 900.0
"""Seconds that a peer may take to start; compilers take their time."""

_NUMBERS = itertools.count()
"""Of processes: two of the same peer live side by side."""


class RefusedError(Exception):
    """A peer that did not do what it was asked."""


class Process:
    """A peer in a process of its own, on as many cores as it has threads."""

    def __init__(self, peer: str, case: Case, setting: Setting) -> None:
        self.peer = peer
        self._imported = False
        self._log = setting.cache / f"said-{peer}-{next(_NUMBERS)}.txt"
        arguments = [peer, str(setting.threads), str(setting.cache), case.name, str(case.model), str(case.folder)]
        with self._log.open("wb") as log, OnCores(setting.threads):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dovetail.bench.peer_process", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment(setting)},
            )

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def wait_for_imports(self) -> None:
        """Wait until it has imported what it needs: from then on it is idle until it is asked."""
        if not self._imported:
            self._imported = True
            self._answer(PATIENCE)

    def start(self) -> Mapping[str, Any]:
        """Let it prepare its case and run it once."""
        self.wait_for_imports()
        return self._ask("start", PATIENCE)

    def turn(self, seconds: float) -> Mapping[str, Any]:
        """Let it run for so long."""
        return self._ask(f"turn {seconds}", PATIENCE)

    def end(self) -> None:
        """Let it go; one that does not is killed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):  # it may have gone already
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, words: str, patience: float) -> Mapping[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{words}\n".encode())
            self._process.stdin.flush()
        except OSError as error:
            raise RefusedError(self._last_words()) from error
        return self._answer(patience)

    def _answer(self, patience: float) -> Mapping[str, Any]:
        answer: dict[str, Any] = json.loads(self._line(patience))
        if "refused" in answer:
            raise RefusedError(answer["refused"])
        return answer

    def _line(self, patience: float) -> bytes:
        assert self._process.stdout is not None
        until = time.monotonic() + patience
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                self._process.kill()
                raise RefusedError(f"it did not answer within {patience:.0f} s")
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            if not piece:
                raise RefusedError(self._last_words())
            line += piece
        return line

    def _last_words(self) -> str:
        """Return why a process may have ended: its last line, and its exit code."""
        code = self._process.wait()
        lines = [line for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return f"its process ended with {code}{': ' + lines[-1].strip()[:120] if lines else ''}"


class OnCores:
    """While this is entered, children start with n of our cores."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._all: set[int] = set()

    def __enter__(self) -> None:
        if hasattr(os, "sched_setaffinity"):
            self._all = os.sched_getaffinity(0)
            os.sched_setaffinity(0, set(sorted(self._all)[: self._count]))

    def __exit__(self, *_: object) -> None:
        if self._all:
            os.sched_setaffinity(0, self._all)


def environment(setting: Setting) -> dict[str, str]:
    """Threads for libraries that ask the environment, and a place of this run's own for whatever peers keep."""
    here = setting.cache
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(setting.threads))
    # A mesh may be of any devices that JAX finds.
    platform = {} if (here / PLACEMENT).is_file() else {"JAX_PLATFORMS": "cpu"}
    # Without bytecode, every process compiles the sources of torch and transformers when it imports them. Where Python
    # may not write it next to the sources, the first process writes it here.
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(here / "bytecode")}
    return {
        **threads,
        **platform,
        **(bytecode if sys.dont_write_bytecode else {}),
        "DOVETAIL_CACHE": str(here / "dovetail"),
        "XDG_CACHE_HOME": str(here),
        "TORCHINDUCTOR_CACHE_DIR": str(here / "inductor"),
        "JAX_COMPILATION_CACHE_DIR": str(here / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "PYTHONWARNINGS": "ignore",
    }


def make_setting(threads: int, folder: Path) -> Setting:
    """Return a setting with an empty place for caches."""
    cache = folder / f"kept-{threads}"
    cache.mkdir()
    return Setting(threads, cache)
