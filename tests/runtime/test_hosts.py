"""Supervisors of several hosts: lost, stopped and unlike peers are typed errors in time, and restarts go on.

The workers here are small programs without JAX; `make faults` has those that compute (`hosts`).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dovetail
from dovetail.errors import OptionError, PeerError
from dovetail.runtime.hosts.gathering import gathered, joined
from dovetail.runtime.hosts.membership import Failure, Membership
from dovetail.runtime.hosts.messages import line
from dovetail.runtime.hosts.supervisor import CAUSE, GRACE, Supervisor

PROGRAM = """
import os, sys, time, types
from pathlib import Path
package = sys.modules["dovetail"] = types.ModuleType("dovetail")  # all of it takes a second to import
package.__path__ = [sys.argv[3]]
from dovetail.errors import DeviceError, LoadError
from dovetail.runtime.hosts.worker import Reporter

reporter, folder = Reporter(sys.argv[1]), Path(sys.argv[2])
mine = reporter.assignment
own = folder / f"pid{mine.rank}.{mine.attempt}"
own.with_suffix(".part").write_text(str(os.getpid()))
os.replace(own.with_suffix(".part"), own)
reporter.at(3)
if "full" in sys.argv and mine.rank == 0:
    reporter.failed(LoadError("state cannot be written: no space is left"))
    os._exit(1)
if "reset" in sys.argv:
    reporter.failed(DeviceError("connection reset by peer"))
    if "killed" in sys.argv:
        time.sleep(1)
        os.kill(os.getpid(), 9)
    os._exit(1)
while not (folder / "go").exists() and not reporter.again:
    time.sleep(0.01)
(folder / f"done{mine.rank}").write_text(str(mine.attempt))
reporter.done()
"""
TIMEOUT = 2.0


class Run:
    """Two supervisors, each in a thread."""

    def __init__(self, folder: Path, *arguments: str, restarts: int = 0, facts: tuple[str, str] = ("1", "1")) -> None:
        (folder / "program.py").write_text(PROGRAM)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self.folder, self.said = folder, list[str]()
        self.errors: dict[int, PeerError] = {}
        program = (sys.executable, str(folder / "program.py"))

        def watched(rank: int) -> None:
            mine = Membership(
                rank, 2, ("127.0.0.1", port), timeout=TIMEOUT, restarts=restarts, facts={"jax": facts[rank]}
            )
            try:
                Supervisor(mine, [str(folder), *dovetail.__path__, *arguments], self.said.append, program).run()
            except PeerError as error:
                self.errors[rank] = error

        self.threads = [threading.Thread(target=watched, args=(rank,), daemon=True) for rank in (0, 1)]
        for thread in self.threads:
            thread.start()

    def pid(self, rank: int) -> int:
        """The worker of a host, once it runs."""
        return int(_awaited(self.folder / f"pid{rank}.0"))

    def end(self) -> None:
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "a supervisor hangs"


def _awaited(path: Path) -> str:
    for _ in range(6000):
        if path.exists():
            return path.read_text()
        time.sleep(0.01)
    raise AssertionError(f"{path} is not written")


@pytest.mark.slow
def test_all_ends_when_all_are_done(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (tmp_path / "go").touch()
    run.end()
    assert run.errors == {} and run.said == []
    assert [(tmp_path / f"done{rank}").read_text() for rank in (0, 1)] == ["0", "0"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("rank", "order", "why"),
    [(0, signal.SIGKILL, "the worker was ended by SIGKILL"), (1, signal.SIGSTOP, "the worker was silent for 2 s")],
    ids=["a killed coordinator", "a stopped peer"],
)
def test_a_lost_worker_is_one_error_on_every_host(tmp_path: Path, rank: int, order: signal.Signals, why: str) -> None:
    run = Run(tmp_path)
    run.pid(1 - rank)
    worker = run.pid(rank)
    time.sleep(0.1)  # its step is told
    os.kill(worker, order)
    run.end()
    assert sorted(run.errors) == [0, 1]
    for error in run.errors.values():
        assert (error.rank, error.host, error.step) == (rank, socket.gethostname(), 3)
        assert f"rank {rank} on {error.host}, step 3: {why}" in str(error)


@pytest.mark.slow
def test_a_restart_takes_the_place_of_a_lost_worker(tmp_path: Path) -> None:
    run = Run(tmp_path, restarts=1)
    os.kill(run.pid(1), signal.SIGKILL)
    run.end()
    assert run.errors == {}
    assert [(tmp_path / f"done{rank}").read_text() for rank in (0, 1)] == ["1", "1"]
    assert all("restart 1 of 1 from the last checkpoint" in line for line in run.said) and len(run.said) == 2


@pytest.mark.slow
def test_what_a_restart_cannot_mend_is_told_at_once(tmp_path: Path) -> None:
    run = Run(tmp_path, "full", restarts=5)
    run.end()
    assert {str(e).splitlines()[0] for e in run.errors.values()} == {
        f"rank 0 on {socket.gethostname()}, step 3: LoadError: state cannot be written: no space is left"
    }
    assert sorted(run.errors) == [0, 1] and run.said == []


def test_unlike_peers_are_refused_with_what_was_found(tmp_path: Path) -> None:
    run = Run(tmp_path, facts=("0.10.2", "0.10.1"))
    run.end()
    assert sorted(run.errors) == [0, 1]
    for error in run.errors.values():
        assert "rank 1 on" in str(error) and "has jax 0.10.1, and rank 0" in str(error) and "0.10.2" in str(error)
    assert not list(tmp_path.glob("pid*"))


@pytest.mark.slow
def test_a_cause_that_a_busy_host_tells_late_is_told_and_not_its_consequence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (tmp_path / "program.py").write_text(PROGRAM)
    mine = Membership(0, 2, ("127.0.0.1", port), timeout=4.0)
    program = (sys.executable, str(tmp_path / "program.py"))
    errors: list[PeerError] = []

    def watched() -> None:
        with pytest.raises(PeerError) as raised:
            Supervisor(mine, [str(tmp_path), *dovetail.__path__, "reset"], print, program).run()
        errors.append(raised.value)

    thread = threading.Thread(target=watched, daemon=True)
    thread.start()
    connection, _ = joined(Membership(1, 2, ("127.0.0.1", port)))
    told: list[Failure] = []
    while not told:
        connection.send({"beat": 3, "host": "busy"})
        told = [Failure.of(m) for m in connection.lines.read() if "failed" in m]
        time.sleep(0.02)
    assert "connection reset by peer" in told[0].why
    time.sleep(2 * GRACE)
    connection.send(Failure(1, "busy", 3, "the worker was ended by SIGKILL", CAUSE).message())
    thread.join(20)
    connection.close()
    assert "rank 1 on busy, step 3: the worker was ended by SIGKILL" in str(errors[0])


@pytest.mark.slow
def test_a_process_that_ends_after_its_connections_is_the_cause(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    mine = Membership(0, 1, ("127.0.0.1", port), timeout=8.0)
    command = [str(tmp_path), *dovetail.__path__, "reset", "killed"]
    with pytest.raises(PeerError, match=r"rank 0 on .*, step 3: the worker was ended by SIGKILL"):
        Supervisor(mine, command, print, (sys.executable, str(tmp_path / "program.py"))).run()


def test_strangers_are_sent_away_and_a_peer_may_come_again() -> None:
    ours: dict[str, object] = {"rank": 1, "hosts": 2, "host": "h", "facts": {}}
    strange = [b"", b"GET / HTTP/1.0\r\n\r\n", b"{}\n", b'{"rank": 1, "hosts": 2, "host": "h", "facts": 3}\n', b"[1]\n"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = Membership(0, 2, ("127.0.0.1", 0), joining=20)

        def said(words: bytes) -> socket.socket:
            one = socket.create_connection(server.getsockname())
            one.sendall(words)
            return one

        known = [said(words) for words in strange]
        said(line(ours)).close()
        peer = said(line(ours))
        found = gathered(mine, server)
        found[1].send({"start": {}})
        assert peer.recv(100) == b'{"start": {}}\n'
        for one in [peer, *known, *found.values()]:
            one.close()


@pytest.mark.slow
def test_a_peer_that_never_comes_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for rank, said in ((0, "rank 1 of 2 did not come within 0.3 s"), (1, "did not start the run within 0.3 s")):
        mine = Membership(rank, 2, ("127.0.0.1", port), joining=0.3)
        with pytest.raises(PeerError, match=said):
            Supervisor(mine, [], print).run()


@pytest.mark.parametrize(
    "made",
    [
        lambda: Membership(2, 2, ("h", 1)),
        lambda: Membership(0, 0, ("h", 1)),
        lambda: Membership(0, 1, ("h", 1), timeout=0),
    ],
)
def test_memberships_that_cannot_be_are_refused(made: Callable[[], Membership]) -> None:
    with pytest.raises(OptionError):
        made()


def test_a_failure_is_read_as_it_was_sent() -> None:
    failure = Failure(1, "h", 7, "gone", 2, True)
    assert Failure.of(failure.message()) == failure
