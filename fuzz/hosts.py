"""Faults of hosts: a training run of two processes with four devices each, of which one is killed, stopped or starved,
comes late, is another version, or loses its network.

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
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from dovetail import Builder, ops, save
from dovetail.dtypes import f32
from fuzz.network import Network

TIMEOUT = 4.0
EVERY = 5
STEPS = 60
"""Steps of a run for each fault that strikes it, and for its rest."""
MOST = 240.0
"""Seconds after which a run hangs."""
ENDED = ([1, 1], [1, -signal.SIGKILL], [-signal.SIGKILL, 1])
"""The exit codes of hosts that a fault ends."""
_OTHER_VERSION = "import dovetail.version as v; v.__version__ = '0.0.0'"
"""What a host with another version runs when Python starts."""


class Hosts:
    """Two hosts of one training run in a folder: a parent and a worker each."""

    def __init__(self, folder: Path, *more: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.more = folder, more
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = int(server.getsockname()[1])
        self.network = Network(self.port)
        self.said = [folder / f"said{rank}" for rank in (0, 1)]
        self.parents: dict[int, subprocess.Popen[bytes]] = {}
        self.writers: list[threading.Thread] = []
        self.stopped: list[int] = []

    def start(self, rank: int, *more: str, model: str = "model", python_path: str | None = None) -> None:
        """Start the command of a host; rank 1 reaches rank 0 through the network."""
        environment = {
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
            "JAX_PLATFORMS": "cpu",
        }
        if python_path is not None:
            environment["PYTHONPATH"] = os.pathsep.join([python_path, os.environ.get("PYTHONPATH", "")])
        files, port = self.folder.parent, self.network.port if rank else self.port
        given = [
            *("train", str(files / f"{model}.txt"), "--loss", "cross_entropy", "--data", str(files / "data.npz")),
            *(
                "--steps",
                (files / "steps").read_text(),
                "--every",
                str(EVERY),
                "--checkpoint",
                str(self.folder / "state"),
            ),
            *("--output", str(self.folder / "weights.safetensors"), "--mesh", "dp=4,tp=2", "--place", "x: dp"),
            *("--place", "labels: dp", "--place", "up: - tp", "--place", "down: tp", "--hosts", "2"),
            *("--coordinator", f"127.0.0.1:{port}", "--peer-timeout", str(TIMEOUT), "--join-timeout", "90"),
        ]
        # Through a pipe: the limit of a full disk would hold for a file that the worker writes its words to.
        process = self.parents[rank] = subprocess.Popen(
            [sys.executable, "-m", "dovetail", *given, "--rank", str(rank), *self.more, *more],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
        )
        self.said[rank].touch()
        writer = threading.Thread(target=_copied, args=(process, self.said[rank]), daemon=True)
        writer.start()
        self.writers.append(writer)

    def worker(self, rank: int) -> int:
        """The process that computes on a host."""
        pid = self.parents[rank].pid
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
        for _, process in sorted(self.parents.items()):
            try:
                codes.append(process.wait(MOST))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(None)
        self.network.end()
        for writer in self.writers:
            writer.join(10)
        return codes, "".join(path.read_text(errors="replace") for path in self.said)

    @property
    def weights(self) -> bytes:
        path = self.folder / "weights.safetensors"
        return path.read_bytes() if path.exists() else b""


def _copied(process: subprocess.Popen[bytes], path: Path) -> None:
    """What a command says, into a file as it comes."""
    assert process.stderr is not None, "it is a pipe"
    with process.stderr as words, open(path, "wb", buffering=0) as file:
        while piece := os.read(words.fileno(), 1 << 16):
            file.write(piece)


def _both(hosts: Hosts, r: random.Random) -> None:
    for rank in (0, 1):
        hosts.start(rank)


def _one_late(hosts: Hosts, r: random.Random) -> None:
    first = r.randrange(2)
    hosts.start(first)
    time.sleep(1 + 4 * r.random())
    hosts.start(1 - first)


def _one_too_late(hosts: Hosts, r: random.Random) -> None:
    hosts.start(0, "--join-timeout", "1")
    hosts.parents[0].wait(MOST)
    hosts.start(1, "--join-timeout", "1")


def _other_version(hosts: Hosts, r: random.Random) -> None:
    (hosts.folder / "sitecustomize.py").write_text(_OTHER_VERSION)
    hosts.start(0)
    hosts.start(1, python_path=str(hosts.folder))


def _other_model(hosts: Hosts, r: random.Random) -> None:
    hosts.start(0)
    hosts.start(1, model="other")


def _strangers(hosts: Hosts, r: random.Random) -> None:
    """Others connect to the coordinator: one says nothing, one speaks HTTP, one sends objects of its own."""
    hosts.start(0)
    words = (b"", b"GET / HTTP/1.0\r\n\r\n", b"{}\n", b'{"rank": "1", "facts": 3}\n', b"[1]\n", b"\xff" * 100)
    known = [_stranger(hosts, r.choice(words)) for _ in range(4)]
    hosts.start(1)
    known += [_stranger(hosts, word) for word in words]
    hosts.await_checkpoint()
    for one in known:
        one.close()


def _stranger(hosts: Hosts, words: bytes) -> socket.socket:
    for _ in range(int(MOST * 20)):
        try:
            one = socket.create_connection(("127.0.0.1", hosts.port))
            one.sendall(words)
            return one
        except OSError:
            time.sleep(0.05)
    raise AssertionError("rank 0 does not listen")


def _killed(rank: int) -> Callable[[Hosts], None]:
    return lambda hosts: os.kill(hosts.worker(rank), signal.SIGKILL)


def _stopped_peer(hosts: Hosts) -> None:
    os.kill(hosts.worker(1), signal.SIGSTOP)


def _full_disk(hosts: Hosts) -> None:
    resource.prlimit(hosts.worker(0), resource.RLIMIT_FSIZE, (64, 64))


def _killed_host(rank: int) -> Callable[[Hosts], None]:
    return lambda hosts: hosts.parents[rank].kill()


def _stopped_host(hosts: Hosts) -> None:
    """All of a host stops; a worker without its parent could still finish."""
    hosts.stopped = [hosts.worker(1), hosts.parents[1].pid]
    for process in hosts.stopped:
        os.kill(process, signal.SIGSTOP)


def _goes_on(hosts: Hosts) -> None:
    for process in hosts.stopped:
        os.kill(process, signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Fault:
    """How the hosts start, what happens after the first checkpoint, and how the run must end."""

    ends: Literal["restarts", "resumes", "refused", "unharmed"]
    """Workers start again by themselves; the run ends, and `--resume` goes on; no worker starts; nothing happens."""
    said: str = ""
    """What must be told, with the step as {step}."""
    happens: Callable[[Hosts], None] | None = None
    after: Callable[[Hosts], None] | None = None
    """What happens once it is told."""
    starts: Callable[[Hosts, random.Random], None] = _both
    tells: int = 0
    """The rank that tells it first."""


_HERE = "on {host}, step {step}: "
FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        "killed_peer": Fault("restarts", f"rank 1 {_HERE}the worker was ended by SIGKILL", _killed(1), tells=1),
        "killed_coordinator": Fault("restarts", f"rank 0 {_HERE}the worker was ended by SIGKILL", _killed(0)),
        "stopped_peer": Fault("restarts", f"rank 1 {_HERE}the worker was silent", _stopped_peer, tells=1),
        "full_disk": Fault("resumes", f"rank 0 {_HERE}LoadError: ", _full_disk),
        "killed_host": Fault("resumes", f"rank 0 {_HERE}", _killed_host(1)),
        "killed_first_host": Fault("resumes", f"rank 1 {_HERE}", _killed_host(0), tells=1),
        "stopped_host": Fault("resumes", f"rank 0 {_HERE}", _stopped_host, _goes_on),
        "closed_network": Fault("unharmed", happens=lambda hosts: hosts.network.close()),
        "silent_network": Fault("restarts", f"rank 1 {_HERE}", lambda hosts: hosts.network.silence(), tells=1),
        "joins_late": Fault("unharmed", starts=_one_late),
        "joins_too_late": Fault("refused", f"rank 0 {_HERE}the worker did not meet", starts=_one_too_late),
        "other_version": Fault("refused", "rank 1 on {host} has dovetail 0.0.0, and rank 0", starts=_other_version),
        "other_model": Fault("refused", "rank 1 on {host} has the model other.txt", starts=_other_model),
        "strangers": Fault("unharmed", starts=_strangers),
    }
)
"""By name."""


def prepare(folder: Path, times: int) -> bytes:
    """Two models, their data, a number of steps for some faults, and the weights of an undisturbed run."""
    (folder / "steps").write_text(str(STEPS * (times + 1)))
    for name, width in (("model", 32), ("other", 64)):
        builder = Builder("network")
        x = builder.input("x", f32[8, 16])
        up, down = builder.param("up", f32[16, width]), builder.param("down", f32[width, 4])
        builder.output("logits", ops.matmul(ops.maximum(ops.matmul(x, up), 0.0), down))
        save(builder.graph(), folder / f"{name}.txt")
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", x=rng.standard_normal((64, 16)).astype(np.float32), labels=np.arange(64) % 4)
    calm = Hosts(folder / "calm")
    _both(calm, random.Random(0))
    codes, said = calm.end()
    assert codes == [0, 0], said
    return calm.weights


def judged(name: str, folder: Path, wanted: bytes, r: random.Random, times: int = 1) -> list[str]:
    """Make a fault happen some times; what was broken.

    Faults that a run survives strike one run again and again, so that every restart begins from the checkpoint of
    another one.
    """
    fault = FAULTS[name]
    if fault.ends == "restarts":
        return [f"{name}: {why}" for why in _restarted(fault, folder, wanted, r, times)]
    if fault.ends == "resumes":
        return [f"{name}: {why}" for why in _resumed(fault, folder, wanted, r, times)]
    found: list[str] = []
    for turn in range(times):
        found += [f"{name}: {why}" for why in _once(fault, folder.with_name(f"{name}{turn}"), wanted, r)]
    return found


def _restarted(fault: Fault, folder: Path, wanted: bytes, r: random.Random, times: int) -> Iterator[str]:
    """One run whose workers start again after each fault."""
    hosts = Hosts(folder, "--restarts", str(times))
    fault.starts(hosts, r)
    for turn in range(times):
        why = _struck(hosts, fault, r, before=turn)
        if why:
            yield why
            break
    codes, said = hosts.end()
    if codes != [0, 0]:
        yield f"{'hangs' if None in codes else 'untold'}: exit codes {codes}: {said}"
    elif hosts.weights != wanted:
        yield "wrong: other weights than an undisturbed run"


def _resumed(fault: Fault, folder: Path, wanted: bytes, r: random.Random, times: int) -> Iterator[str]:
    """Runs that a fault ends, each resumed by the next; the last one is left alone."""
    for turn in range(times):
        hosts = Hosts(folder, *(("--resume",) if turn else ()))
        fault.starts(hosts, r)
        why = _struck(hosts, fault, r)
        codes, said = hosts.end()
        if why or codes not in ENDED:
            yield why or f"{'hangs' if None in codes else 'untold'}: exit codes {codes}: {said}"
            return
    hosts = Hosts(folder, "--resume")
    _both(hosts, r)
    codes, said = hosts.end()
    if codes != [0, 0]:
        yield f"{'hangs' if None in codes else 'wrong'}: it does not resume: {codes}: {said}"
    elif hosts.weights != wanted:
        yield "wrong: other weights than an undisturbed run"


def _once(fault: Fault, folder: Path, wanted: bytes, r: random.Random) -> Iterator[str]:
    """One run of hosts that refuse each other, or that nothing happens to."""
    hosts = Hosts(folder)
    fault.starts(hosts, r)
    told = _await_words(hosts, fault) if fault.said else 0
    codes, said = hosts.end()
    refused = fault.ends == "refused"
    if None in codes:
        yield f"hangs: exit codes {codes}: {said}"
    elif told is None or (codes not in ENDED if refused else codes != [0, 0]):
        yield f"untold: exit codes {codes}: {said}"
    elif refused and (hosts.weights or (folder / "state").exists()):
        yield "wrong: it has written weights"
    elif not refused and hosts.weights != wanted:
        yield "wrong: other weights than an undisturbed run"


def _struck(hosts: Hosts, fault: Fault, r: random.Random, before: int = 0) -> str:
    """Make the fault happen after the next checkpoint; what was broken, where it was told `before` times already."""
    assert fault.happens is not None, "hosts that refuse each other are not struck"
    hosts.await_checkpoint()
    time.sleep(r.random() * 0.1)
    try:
        fault.happens(hosts)
    except (OSError, IndexError):
        return "not tried: it ended before the fault"
    told = _await_words(hosts, fault, before)
    if fault.after is not None:
        fault.after(hosts)
    if told is None or told > TIMEOUT + 10:
        return f"untold: told after {told} s: {''.join(path.read_text(errors='replace') for path in hosts.said)}"
    return ""


def _await_words(hosts: Hosts, fault: Fault, before: int = 0) -> float | None:
    """The seconds until the fault is told once more; None where all end without."""
    began = time.monotonic()
    start, _, rest = fault.said.format(host=socket.gethostname(), step="\0").partition("\0")
    while time.monotonic() - began < MOST:
        over = hosts.parents[fault.tells].poll() is not None
        said = hosts.said[fault.tells].read_text(errors="replace")
        if sum(start in line and rest in line for line in said.splitlines()) > before:
            return time.monotonic() - began
        if over:
            return None
        time.sleep(0.05)
    return None


def hosts(count: int, folder: Path) -> list[str]:
    """Each fault this often; prints totals."""
    wanted = prepare(folder, count)
    r, broken = random.Random(7), list[str]()
    for name in FAULTS:
        began = time.monotonic()
        found = judged(name, folder / name, wanted, r, count)
        broken += found
        print(f"   {name:20} {count} times, {len(found)} broken, {time.monotonic() - began:.0f} s", flush=True)
    kinds = Counter(why.split(": ")[1] for why in broken)
    totals = ", ".join(f"{kinds[kind]} {kind}" for kind in ("hangs", "wrong", "untold", "not tried"))
    print(f"   {len(FAULTS)} faults, {count * len(FAULTS)} times in all: {totals}", flush=True)
    return broken


__all__ = ["FAULTS", "hosts"]
