"""A parent and its worker: lost, stopped and failing workers are typed errors in time, and restarts go on.

The workers here are small programs without JAX; `make faults` has those that compute (`hosts`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dovetail
from dovetail.errors import OptionError, PeerError
from dovetail.runtime.hosts import Member, supervise

PROGRAM = """
import os, sys, time, types
from pathlib import Path
package = sys.modules["dovetail"] = types.ModuleType("dovetail")  # all of it takes a second to import
package.__path__ = [sys.argv[3]]
from dovetail.errors import DeviceError, LoadError
from dovetail.runtime.hosts import Reporter

reporter, folder = Reporter(sys.argv[1]), Path(sys.argv[2])
mine = reporter.member
own = folder / f"pid{mine.attempt}"
own.with_suffix(".part").write_text(str(os.getpid()))
if "alone" in sys.argv and mine.attempt < 2:
    reporter.failed(DeviceError("it did not meet its peers"))
    os._exit(1)
if "early" in sys.argv:
    os.abort()
reporter.met()
reporter.at(3)
os.replace(own.with_suffix(".part"), own)
if "full" in sys.argv:
    reporter.failed(LoadError("state cannot be written: no space is left"))
    os._exit(1)
if "reset" in sys.argv and not reporter.again:
    reporter.failed(DeviceError("connection reset by peer"))
    os._exit(1)
if "aborts" in sys.argv:
    os.abort()
while not (folder / "go").exists() and not reporter.again:
    time.sleep(0.01)
(folder / "done").write_text(str(mine.attempt))
"""
TIMEOUT = 2.0


class Run:
    """A parent in a thread."""

    def __init__(self, folder: Path, *arguments: str, restarts: int = 0, joining: float = 60) -> None:
        (folder / "program.py").write_text(PROGRAM)
        self.folder, self.said = folder, list[str]()
        self.error: PeerError | None = None
        program = (sys.executable, str(folder / "program.py"))
        mine = Member(1, 2, "127.0.0.1:1", "here", timeout=TIMEOUT, joining=joining, restarts=restarts)

        def watched() -> None:
            try:
                supervise(mine, program, [str(folder), *dovetail.__path__, *arguments], self.said.append)
            except PeerError as error:
                self.error = error

        self.thread = threading.Thread(target=watched, daemon=True)
        self.thread.start()

    def pid(self) -> int:
        """The first worker, once it runs and has told its step."""
        return int(_awaited(self.folder / "pid0"))

    def end(self) -> str:
        """The first line of the error, empty without one."""
        self.thread.join(60)
        assert not self.thread.is_alive(), "the parent hangs"
        return str(self.error).splitlines()[0] if self.error is not None else ""


def _awaited(path: Path) -> str:
    for _ in range(6000):
        if path.exists():
            return path.read_text()
        time.sleep(0.01)
    raise AssertionError(f"{path} is not written")


@pytest.mark.slow
def test_all_ends_when_the_worker_is_done(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    run = Run(tmp_path)
    assert run.end() == "" and run.said == []
    assert (tmp_path / "done").read_text() == "0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "why"),
    [(signal.SIGKILL, "the worker was ended by SIGKILL"), (signal.SIGSTOP, "the worker was silent for 2 s")],
    ids=["a killed worker", "a stopped worker"],
)
def test_a_lost_worker_is_an_error_with_its_place_and_step(tmp_path: Path, order: signal.Signals, why: str) -> None:
    run = Run(tmp_path)
    worker = run.pid()
    os.kill(worker, order)
    said = run.end()
    assert run.error is not None
    assert (run.error.rank, run.error.host, run.error.step) == (1, "here", 3)
    assert said.startswith(f"rank 1 on here, step 3: {why}")
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "reset"])
def test_a_restart_takes_the_place_of_a_lost_worker(tmp_path: Path, how: str) -> None:
    run = Run(tmp_path, how, restarts=1)
    if how == "killed":
        os.kill(run.pid(), signal.SIGKILL)
    assert run.end() == ""
    assert (tmp_path / "done").read_text() == "1"
    assert [line.partition("; ")[2] for line in run.said] == ["restart 1 of 1 from the last checkpoint"]


@pytest.mark.slow
def test_workers_that_a_lost_peer_ends_start_again_as_often_as_is_said(tmp_path: Path) -> None:
    run = Run(tmp_path, "aborts", restarts=1)
    assert run.end() == "rank 1 on here, step 3: the worker was ended by SIGABRT, as JAX ends it where a peer is lost"
    assert len(run.said) == 1


@pytest.mark.slow
def test_what_a_restart_cannot_mend_is_told_at_once(tmp_path: Path) -> None:
    run = Run(tmp_path, "full", restarts=5)
    assert run.end() == "rank 1 on here, step 3: LoadError: state cannot be written: no space is left"
    assert run.said == [] and run.error is not None and "run it again with --resume" in run.error.hint


@pytest.mark.slow
def test_to_meet_is_tried_until_the_time_is_over_and_counts_as_no_restart(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    run = Run(tmp_path, "alone")
    assert run.end() == "" and run.said == []
    assert (tmp_path / "done").read_text() == "2"
    (tmp_path / "done").unlink()
    run = Run(tmp_path, "alone", joining=0.01)
    assert run.end() == "rank 1 on here, step 0: DeviceError: it did not meet its peers"
    assert run.error is not None and "start all 2 ranks within --join-timeout" in run.error.hint


@pytest.mark.slow
def test_a_worker_that_jax_aborts_before_all_are_there_did_not_meet_them(tmp_path: Path) -> None:
    run = Run(tmp_path, "early", joining=0.01)
    assert run.end() == "rank 1 on here, step 0: the worker did not meet all others at 127.0.0.1:1 within 0.01 s"


@pytest.mark.slow
def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    parent = f"""
import sys
from dovetail.runtime.hosts import Member, supervise
supervise(Member(0, 1, "h:1", "here"), {[sys.executable, str(tmp_path / "program.py")]!r},
          {[str(tmp_path), *dovetail.__path__]!r}, print)
"""
    process = subprocess.Popen([sys.executable, "-c", parent])
    worker = int(_awaited(tmp_path / "pid0"))
    process.kill()
    process.wait()
    for _ in range(500):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError("the worker goes on without its parent")


@pytest.mark.parametrize(
    "made",
    [
        lambda: Member(2, 2, "h:1", "h"),
        lambda: Member(0, 0, "h:1", "h"),
        lambda: Member(0, 1, "h:1", "h", timeout=0),
        lambda: Member(0, 1, "h:1", "h", restarts=-1),
    ],
)
def test_members_that_cannot_be_are_refused(made: Callable[[], Member]) -> None:
    with pytest.raises(OptionError):
        made()
