"""Faults on purpose: `make faults`. Kills in the middle of a write, full disks, forks, signals, long service.

Each fault is one function that makes it happen once, or a number of times in a row, and gives what was broken.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, MappingProxyType

import numpy as np

import dovetail
from dovetail import Builder, Graph, Program, ops
from dovetail.dtypes import f32
from dovetail.errors import DovetailError
from dovetail.ir.literal import Array
from fuzz.forked import forked
from fuzz.hosts import hosts
from fuzz.keep import remove
from fuzz.serving import serving
from fuzz.training import training

GROWTH = 8 << 20
"""Bytes that a long service may grow by: pages that the allocator keeps."""
WARM = 50
"""Rounds of a service before its memory counts."""


def network(width: int = 16) -> Graph:
    """Two layers, so that there are several kernels to compile, at any number of rows."""
    builder = Builder("faults", lines=False)
    values = np.linspace(-1, 1, width * width, dtype=np.float32).reshape(width, width)
    x = builder.input("x", f32["n", width])
    h = ops.tanh(x @ builder.param("w", f32[width, width], values))
    builder.output("y", ops.exp(h @ builder.param("v", f32[width, width], values)) + x)
    return builder.graph()


def feeds(rows: int = 3, width: int = 16) -> dict[str, Array]:
    return {"x": np.linspace(-1, 1, rows * width, dtype=np.float32).reshape(rows, width)}


def writing(folder: Path) -> None:
    """Compile into a cache and save the graph, again and again."""
    while True:
        for width in (4, 8, 16):
            dovetail.compile(network(width), cache=str(folder / "cache")).run(feeds(width=width))
            dovetail.save(network(width), folder / "graph")


def kill(count: int, folder: Path) -> list[str]:
    """A process is killed at a random moment of compiling, saving and writing the cache."""
    r, broken = random.Random(1), list[str]()
    wanted = {width: dovetail.compile(network(width), cache="off").run(feeds(width=width)) for width in (4, 8, 16)}
    for number in range(count):
        forked(lambda: writing(folder), kill_after=r.random() * 0.4)
        if (folder / "graph").exists():
            try:
                dovetail.graphs.verify(dovetail.load(folder / "graph"))
            except DovetailError as error:
                broken.append(f"kill {number}: the saved graph is broken: {error}")
        width = r.choice((4, 8, 16))
        found = dovetail.compile(network(width), cache=str(folder / "cache")).run(feeds(width=width))
        if found["y"].tobytes() != wanted[width]["y"].tobytes():
            broken.append(f"kill {number}: the program from the cache computes something else")
        if number % 20 == 19:
            remove(folder / "cache")
    return broken


def full_disk(count: int, folder: Path) -> list[str]:
    """No file can grow beyond a limit: compiling works without the cache, saving is a typed error, no file is half."""
    r, broken = random.Random(2), list[str]()

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = r.choice((0, 1, 64, 1000, 4096))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        dovetail.compile(network(), cache=str(folder / "cache")).run(feeds())
        try:
            dovetail.save(network(), folder / "graph")
        except DovetailError:
            return
        dovetail.load(folder / "graph")

    for number in range(count):
        r.random()
        status = forked(limited)
        if status != 0:
            broken.append(f"full disk {number}: the process {'hangs' if status is None else f'ends with {status}'}")
        remove(folder / "cache")
    return broken


def bad_folders(count: int, folder: Path) -> list[str]:
    """The folder of the cache is a file, lies in one, cannot be made, or is named by a HOME that is not there."""
    (folder / "file").write_text("no folder")
    broken: list[str] = []
    for number in range(count):
        named = (str(folder / "file"), str(folder / "file" / "below"), "/proc/nowhere", "/dev/null/cache")[number % 4]

        def compiled(named: str = named) -> None:
            os.environ["HOME"] = os.environ["XDG_CACHE_HOME"] = named
            for cache in (named, ""):
                dovetail.compile(network(), cache=cache).run(feeds())

        if forked(compiled) != 0:
            broken.append(f"cache in {named}: the program does not run")
    return broken


def forks(count: int, folder: Path) -> list[str]:
    """A process forks while another of its threads runs on the pool; both go on."""
    program = dovetail.compile(network(), threads=2, cache="off")
    given = feeds(64)
    wanted = program.run(given)["y"].tobytes()
    over, broken = threading.Event(), list[str]()

    def go() -> None:
        while not over.is_set():
            if program.run(given)["y"].tobytes() != wanted:
                broken.append("the parent computes something else")

    def child() -> None:
        assert all(program.run(given)["y"].tobytes() == wanted for _ in range(5))
        assert dovetail.compile(network(8), threads=2, cache="off").run(feeds(width=8))["y"].size

    thread = threading.Thread(target=go)
    thread.start()
    try:
        for number in range(count):
            status = forked(child)
            if status != 0:
                broken.append(f"fork {number}: the child {'hangs' if status is None else f'ends with {status}'}")
    finally:
        over.set()
        thread.join()
    return broken


class _Struck(BaseException):
    """What the handler of a signal raises, as that of an interrupt does."""


def signals(count: int, folder: Path) -> list[str]:
    """A signal arrives in the middle of compiling and running; its handler raises, and what comes after is right."""
    r, broken, struck = random.Random(3), list[str](), 0
    program = dovetail.compile(network(), threads=2, cache="off")
    given = feeds(64)
    wanted = program.run(given)["y"].tobytes()

    def raises(signum: int, frame: FrameType | None) -> None:
        raise _Struck

    def swallowed(lost: sys.UnraisableHookArgs) -> None:
        # Python drops what is raised in a weak reference's callback or a destructor, also what a signal handler raises.
        if not isinstance(lost.exc_value, _Struck):
            report(lost)

    report, sys.unraisablehook = sys.unraisablehook, swallowed
    before = signal.signal(signal.SIGALRM, raises)
    try:
        while struck < count:
            try:
                signal.setitimer(signal.ITIMER_REAL, r.random() * 0.02 + 1e-4)
                for _ in range(1000):
                    program.run(given)
                    dovetail.compile(network(4), cache="off")
                signal.setitimer(signal.ITIMER_REAL, 0)
            except _Struck:
                struck += 1
            if program.run(given)["y"].tobytes() != wanted:
                broken.append(f"signal {struck}: the program computes something else")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = report
    return broken


def service(count: int, folder: Path) -> list[str]:
    """Compile, specialise, run and drop, again and again: memory stays flat."""
    sizes: list[int] = []
    for number in range(WARM + count):
        program: Program = dovetail.compile(network(4 + number % 13), cache=str(folder / "cache"))
        program.specialize({"n": 2 + number % 5}).run(feeds(2 + number % 5, 4 + number % 13))
        program.run(feeds(7, 4 + number % 13))
        del program
        if number >= WARM and number % 10 == 0:
            gc.collect()
            sizes.append(_resident())
    grown = sizes[-1] - min(sizes[: max(1, len(sizes) // 4)])
    return [f"{grown >> 20} MB more after {count} programs"] if grown > GROWTH else []


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


Fault = Callable[[int, Path], list[str]]
FAULTS: Mapping[str, tuple[Fault, int]] = MappingProxyType(
    {
        "kill": (kill, 1000),
        "training": (training, 1000),
        "full_disk": (full_disk, 100),
        "bad_folders": (bad_folders, 40),
        "forks": (forks, 100),
        "signals": (signals, 500),
        "service": (service, 2000),
        **({"hosts": (hosts, 20)} if find_spec("jax") else {}),
        "serving": (lambda count, folder: serving(count, folder, _resident, GROWTH), 10_000),
    }
)
"""Each fault, and how often it happens by default."""


def main() -> int:
    """Make the faults happen, print what broke, and fail if anything did."""
    warnings.simplefilter("ignore")  # forks of a process with threads are what is tried here
    parser = argparse.ArgumentParser(prog="make faults", description="Faults on purpose.")
    parser.add_argument("only", nargs="*", choices=[[], *FAULTS], help="names of faults; without any, all")
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual counts")
    said = parser.parse_args()
    total = 0
    for name in said.only or FAULTS:
        fault, count = FAULTS[name]
        count = max(1, int(count * said.scale))
        started = time.monotonic()
        with TemporaryDirectory() as folder:
            broken = fault(count, Path(folder))
        total += len(broken)
        print(f"{name:12} {count:6} times, {len(broken)} broken, {time.monotonic() - started:.0f} s", flush=True)
        for line in broken[:10]:
            print(f"   {line}")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
