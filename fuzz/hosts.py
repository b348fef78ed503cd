"""Faults of hosts: a training run of two processes with four devices each, of which one is killed, stopped or starved.

Every run must end within its timeouts with a typed error or with the weights that an undisturbed run has, to the bit.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from dovetail import Builder, f32, ops, save

TIMEOUT = 4.0
STEPS, EVERY = 120, 5
MOST = 240.0
"""Seconds after which a run hangs."""


class Hosts:
    """Two supervisors of one training run in a folder."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        environment = {
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
            "JAX_PLATFORMS": "cpu",
        }
        given = [
            *(
                "train",
                str(folder.parent / "model.txt"),
                "--loss",
                "cross_entropy",
                "--data",
                str(folder.parent / "data.npz"),
            ),
            *("--steps", str(STEPS), "--every", str(EVERY), "--checkpoint", str(folder / "state")),
            *("--output", str(folder / "weights.safetensors"), "--mesh", "dp=4,tp=2", "--place", "x: dp"),
            *("--place", "labels: dp", "--place", "up: - tp", "--place", "down: tp", "--hosts", "2"),
            *("--coordinator", f"127.0.0.1:{port}", "--peer-timeout", str(TIMEOUT), "--join-timeout", "90"),
        ]
        self.said = [folder / f"said{rank}" for rank in (0, 1)]
        self.supervisors = [
            subprocess.Popen(
                [sys.executable, "-m", "dovetail", *given, "--rank", str(rank), *more],
                stdout=subprocess.DEVNULL,
                stderr=open(self.said[rank], "wb"),  # noqa: SIM115  # the process holds it
                env=environment,
            )
            for rank in (0, 1)
        ]

    def worker(self, rank: int) -> int:
        """The process that computes on a host."""
        pid = self.supervisors[rank].pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def await_checkpoint(self) -> None:
        """Wait until training has begun."""
        before = (self.folder / "state").stat().st_mtime_ns if (self.folder / "state").exists() else 0
        for _ in range(int(MOST * 50)):
            if (self.folder / "state").exists() and (self.folder / "state").stat().st_mtime_ns != before:
                return
            time.sleep(0.02)

    def end(self) -> tuple[list[int | None], str]:
        """The exit codes, None for a process that hangs, and all that was said."""
        codes: list[int | None] = []
        for process in self.supervisors:
            try:
                codes.append(process.wait(MOST))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(None)
        return codes, "".join(path.read_text(errors="replace") for path in self.said)

    @property
    def weights(self) -> bytes:
        path = self.folder / "weights.safetensors"
        return path.read_bytes() if path.exists() else b""


def _killed_peer(hosts: Hosts) -> None:
    os.kill(hosts.worker(1), signal.SIGKILL)


def _killed_coordinator(hosts: Hosts) -> None:
    os.kill(hosts.worker(0), signal.SIGKILL)


def _stopped_peer(hosts: Hosts) -> None:
    os.kill(hosts.worker(1), signal.SIGSTOP)


def _full_disk(hosts: Hosts) -> None:
    resource.prlimit(hosts.worker(0), resource.RLIMIT_FSIZE, (64, 64))


def _killed_host(hosts: Hosts) -> None:
    hosts.supervisors[1].kill()


KILLED = "on {host}, step {step}: the worker was ended by SIGKILL"
FAULTS: Mapping[str, tuple[Callable[[Hosts], None], str, bool]] = MappingProxyType(
    {
        "killed_peer": (_killed_peer, f"rank 1 {KILLED}", True),
        "killed_coordinator": (
            _killed_coordinator,
            "rank 0 on {host}, step {step}: the worker was ended by SIGKILL",
            True,
        ),
        "stopped_peer": (_stopped_peer, "rank 1 on {host}, step {step}: the worker was silent", True),
        "full_disk": (_full_disk, "rank 0 on {host}, step {step}: LoadError: ", False),
        "killed_host": (_killed_host, "rank 1 on {host}, step {step}: its supervisor closed the connection", False),
    }
)
"""The fault, what must be said of it, and whether workers are started again by themselves."""


def prepare(folder: Path) -> bytes:
    """A model, its data, and the weights of an undisturbed run."""
    builder = Builder("network")
    x = builder.input("x", f32[8, 16])
    up, down = builder.param("up", f32[16, 32]), builder.param("down", f32[32, 4])
    builder.output("logits", ops.matmul(ops.maximum(ops.matmul(x, up), 0.0), down))
    save(builder.graph(), folder / "model.txt")
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", x=rng.standard_normal((64, 16)).astype(np.float32), labels=np.arange(64) % 4)
    (folder / "calm").mkdir()
    calm = Hosts(folder / "calm")
    codes, said = calm.end()
    assert codes == [0, 0], said
    return calm.weights


def judged(name: str, folder: Path, wanted: bytes, r: random.Random) -> str:
    """Make a fault happen once; what was broken, or nothing."""
    fault, pattern, restarts = FAULTS[name]
    folder.mkdir()
    hosts = Hosts(folder, *(("--restarts", "1") if restarts else ()))
    hosts.await_checkpoint()
    time.sleep(r.random() * 0.1)
    try:
        fault(hosts)
    except (OSError, IndexError):
        hosts.end()
        return f"{name}: it ended before the fault"
    began = time.monotonic()
    ends = 1 if restarts else 0
    told = _await_words(hosts, pattern, began)
    codes, said = hosts.end()
    if told is None or told > TIMEOUT + 10:
        return f"{name}: told after {told} s: {said}"
    expected = [[0, 0]] if ends else [[1, 1], [1, -signal.SIGKILL]]
    if codes not in expected:
        return f"{name}: exit codes {codes}: {said}"
    if not restarts:
        again = Hosts(folder, "--resume")
        codes, said = again.end()
        if codes != [0, 0]:
            return f"{name}: it does not resume: {codes}: {said}"
        hosts = again
    return "" if hosts.weights == wanted else f"{name}: other weights than an undisturbed run"


def _await_words(hosts: Hosts, pattern: str, began: float) -> float | None:
    """The seconds until rank 0 tells the fault."""
    start, _, rest = pattern.format(host=socket.gethostname(), step="\0").partition("\0")
    while time.monotonic() - began < MOST:
        said = hosts.said[0].read_text(errors="replace")
        if any(start in line and rest in line for line in said.splitlines()):
            return time.monotonic() - began
        time.sleep(0.05)
    return None


def hosts(count: int, folder: Path) -> list[str]:
    """Each fault this often."""
    wanted = prepare(folder)
    r, broken = random.Random(7), list[str]()
    for name in FAULTS:
        began, wrong = time.monotonic(), len(broken)
        broken += [why for n in range(count) if (why := judged(name, folder / f"{name}{n}", wanted, r))]
        print(f"   {name:20} {count} times, {len(broken) - wrong} broken, {time.monotonic() - began:.0f} s", flush=True)
    return broken


__all__ = ["FAULTS", "hosts"]
