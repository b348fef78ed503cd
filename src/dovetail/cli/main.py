"""The `dovetail` command: what runs before anything large is imported, so that Ctrl-C is answered from the start.

Exit codes: 0 ok, 1 user error, 2 unsupported, 3 verification failed, 4 gate failed, 5 results differ.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dovetail.process import claim

if TYPE_CHECKING:
    from dovetail.runtime.hosts import Reporter

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""
_SAID = "dovetail: interrupted\n"


def main(argv: Sequence[str] | None = None, reporter: Reporter | None = None) -> int:
    """Run one command line; the result is the exit code. A worker of several hosts has a reporter."""
    words = sys.argv[1:] if argv is None else argv
    if list(words) == ["--version"]:
        from dovetail.version import __version__

        print(f"dovetail {__version__}")
        return 0
    if argv is None:
        claim()
    try:
        with _leaves_at_once():
            from dovetail.cli.dispatch import run_line
        return run_line(argv, reporter)
    except KeyboardInterrupt:
        from dovetail.cli.progress import tell

        tell(_SAID.rstrip("\n"))
        return INTERRUPTED


@contextmanager
def _leaves_at_once() -> Generator[None]:
    """Ctrl-C ends the process while modules are imported: an exception there may come out as another one."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _leave(*_: object) -> None:
    os.write(2, _SAID.encode())
    os._exit(INTERRUPTED)
