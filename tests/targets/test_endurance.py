"""Many runs, many threads, other processes: memory does not grow, bits do not change, and nobody hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dovetail
from dovetail import Graph, Program, library, ops
from dovetail.bench.transformers import Encoder, encoder
from dovetail.dtypes import f32
from dovetail.ir import leaf

pytestmark = pytest.mark.exhaustive

Array = NDArray[Any]
RUNS = 100_000
RANDOM = np.random.default_rng(5)
LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell what is resident")
ROWS = (3, 5, 8)


def numbers(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def small(**options: Any) -> Program:
    """A product and what follows it, at any number of rows."""
    x, w = leaf.input("x", f32["n", 16]), leaf.param("w", f32[16, 16])
    return dovetail.compile(Graph.of(ops.tanh(x @ w) + x), params={"w": numbers(16, 16)}, **options)


# VmRSS is all that a process has in memory; RssAnon leaves out pages of files, which the system drops and reads again.
RESIDENT = """
from pathlib import Path

def resident(what):
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(what + ":")))
"""

MANY_RUNS = (
    RESIDENT
    + """
import sys
import numpy as np
import dovetail
from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir import leaf

x, w = leaf.input("x", f32["n", 16]), leaf.param("w", f32[16, 16])
program = dovetail.compile(Graph.of(ops.tanh(x @ w) + x), params={"w": np.eye(16, dtype=np.float32)})
given = [{"x": np.ones((rows, 16), np.float32)} for rows in (3, 5, 8)]
for i in range(1000):
    program.run(given[i % 3])
before = resident("RssAnon")
for i in range(int(sys.argv[1])):
    program.run(given[i % 3])
print(resident("RssAnon") - before)
"""
)


def python(script: str, *given: str, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own; one that hangs fails."""
    command = [sys.executable, "-W", "ignore", "-c", script, *given]
    around = {**os.environ, "DOVETAIL_CACHE": str(cache or "off")}
    return subprocess.run(command, timeout=300, check=False, capture_output=True, text=True, env=around)


@LINUX
def test_a_hundred_thousand_runs_grow_by_less_than_a_megabyte() -> None:
    """In a process of its own: one that ran other tests frees and takes megabytes for its own reasons."""
    done = python(MANY_RUNS, str(RUNS))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1 << 20


def test_eight_threads_of_ten_thousand_runs_give_the_same_bits() -> None:
    program = small(threads=2)
    given = [{"x": numbers(rows, 16)} for rows in ROWS]
    wanted = [program.run(g)["y"].tobytes() for g in given]
    wrong: list[int] = []

    def go() -> None:
        wrong.extend(i for i in range(10_000) if program.run(given[i % 3])["y"].tobytes() != wanted[i % 3])

    threads = [threading.Thread(target=go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def block() -> Graph:
    """Attention, norms, a wide inner layer and sums over rows, with sizes that no tile divides."""
    x, mask = leaf.input("x", f32[2, 37, 96]), leaf.input("mask", f32[2, 1, 37, 37])
    w = {name: leaf.param(name, f32[96, 96]) for name in "qkvo"}
    up, down, gain, bias = (
        leaf.param(name, f32[shape]) for name, shape in (("up", (96, 330)), ("down", (330, 96)), ("g", 96), ("b", 96))
    )

    h = library.layer_norm(x, gain, bias, eps=1e-5)
    scores = library.softmax((h @ w["q"]) @ ops.permute(h @ w["k"], order=(-1, -2)) + ops.squeeze(mask, axes=(-3,)))
    x = x + (scores @ (h @ w["v"])) @ w["o"]
    inner = library.gelu(library.layer_norm(x, gain, bias, eps=1e-5) @ up)
    return Graph.of({"y": x + inner @ down, "sum": ops.reduce_sum(x, axes=(-1,))})


def test_bits_are_the_same_for_any_number_of_threads() -> None:
    graph = block()
    params = {str(v.attrs["name"]): numbers(*map(int, v.shape)) * 0.1 for v in graph.parameters}  # pyright: ignore
    feeds = {"x": numbers(2, 37, 96), "mask": np.zeros((2, 1, 37, 37), np.float32)}
    found = [dovetail.compile(graph, params=params, threads=n).run(feeds) for n in (1, 2, 3, 4, 7)]
    for name, array in found[0].items():
        assert np.isfinite(array).all()
        assert len({other[name].tobytes() for other in found}) == 1, name


BOUND = (
    RESIDENT
    + """
import ctypes, gc, json, sys
import numpy as np
import dovetail

def ran(path):
    program = dovetail.compile(path)
    program.run({v.attrs["name"]: np.ones(v.shape, v.dtype.numpy) for v in program.graph.inputs})
    return program

first = ran(sys.argv[1])  # the compiler itself, and the code of kernels
before = resident("VmRSS")
program = ran(sys.argv[2])
gc.collect()
getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # the allocator of a process is its own: what it keeps is not held
grown = resident("VmRSS") - before
weights = sum(a.nbytes for a in program.params.values())
print(json.dumps({"grown": grown, "weights": weights, "arena": program.plan.arena_size}))
"""
)


@LINUX
def test_bound_weights_lie_in_memory_once(tmp_path: Path) -> None:
    for name, layers, words in (("first", 1, 50), ("second", 2, 3000)):
        model = encoder(Encoder(layers, 512, 8, 2048, words), 1, 16)
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
    for _ in ("compiled", "from the cache"):
        done = python(BOUND, str(tmp_path / "first.onnx"), str(tmp_path / "second.onnx"), cache=tmp_path / "cache")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said["weights"] > 30e6
        assert said["grown"] <= 1.3 * said["weights"] + said["arena"]


PREPARED = """
import os, signal, sys, threading, time
import numpy as np
import dovetail
from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir import leaf

x, w = leaf.input("x", f32["n", 256]), leaf.param("w", f32[256, 256])
program = dovetail.compile(Graph.of(ops.tanh(x @ w)), params={"w": np.eye(256, dtype=np.float32)}, threads=3)
given = {"x": np.ones((64, 256), np.float32)}
wanted = program.run(given)["y"].tobytes()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_program_runs_on_in_a_child() -> None:
    """Also while another thread of the parent is in the middle of a run."""
    done = python(
        PREPARED + "def go():\n"
        "    while True: program.run(given)\n"
        "threading.Thread(target=go, daemon=True).start()\n"
        "for _ in range(20):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        same = all(program.run(given)['y'].tobytes() == wanted for _ in range(20))\n"
        "        os._exit(0 if same and program._executable.pool._threads else 1)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_process_ends_while_a_thread_runs() -> None:
    done = python(
        PREPARED + "def go():\n"
        "    while True: program.run(given)\n"
        "for _ in range(3): threading.Thread(target=go, daemon=True).start()\n"
        "time.sleep(0.2)\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such signal")
def test_an_interrupt_leaves_the_program_whole() -> None:
    """It is raised between two runs or behind one, never inside; what comes after runs as before."""
    done = python(
        # A shell that starts something behind it has it ignore interrupts.
        PREPARED + "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "caught = 0\n"
        "def strike():\n"
        "    for _ in range(30):\n"
        "        time.sleep(0.005); os.kill(os.getpid(), signal.SIGINT)\n"
        "striker = threading.Thread(target=strike)\n"
        "striker.start()\n"
        "while True:\n"
        "    try:\n"
        "        while striker.is_alive(): program.run(given)\n"
        "        break\n"
        "    except KeyboardInterrupt:\n"
        "        caught += 1\n"
        "assert caught\n"
        "assert program.run(given)['y'].tobytes() == wanted\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_run_lets_other_threads_go_on() -> None:
    """Python runs elsewhere while compiled code does."""
    x = leaf.input("x", f32[1 << 21])
    program = dovetail.compile(Graph.of(ops.tanh(ops.exp(ops.sin(x)))), threads=1)
    given = {"x": np.zeros(1 << 21, np.float32)}
    program.run(given)
    turns, over = 0, False

    def go() -> None:
        nonlocal turns
        while not over:
            turns += 1
            time.sleep(0.0001)

    thread = threading.Thread(target=go)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100.0)  # who holds the lock of the interpreter is not asked for it
    try:
        thread.start()
        before = turns
        program.run(given)
        during = turns - before
    finally:
        over = True
        sys.setswitchinterval(interval)
    thread.join()
    assert during > 1
