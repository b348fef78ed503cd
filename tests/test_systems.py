"""What works where a system lacks what Linux has: other systems are simulated in a process of their own.

The script hides what the system would not have before dovetail is imported: /proc and /sys, modules, functions of `os`
and the C library of the process. Other packages are imported before, since they were installed for this system.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

HIDE = """
import asyncio, builtins, ctypes, io, json, logging, mmap, os, pathlib, selectors, signal, socket, ssl, subprocess, sys
import tempfile, threading, time, urllib.request, uuid
import numpy, ml_dtypes, onnx, llvmlite.binding

SYSTEM = sys.argv[1]
real = io.open


def without_linux(file, *args, **kwargs):
    if isinstance(file, (str, os.PathLike)) and os.fspath(file).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "No such file or directory", os.fspath(file))
    return real(file, *args, **kwargs)


builtins.open = io.open = without_linux
sys.platform = SYSTEM
for name in ("sched_getaffinity", "sched_setaffinity", "pidfd_open", "memfd_create", "eventfd"):
    if hasattr(os, name):
        delattr(os, name)
for name in [name for name in vars(mmap) if name.startswith(("MADV_", "MAP_POPULATE"))]:
    if SYSTEM == "win32" or name in ("MADV_HUGEPAGE", "MADV_NOHUGEPAGE", "MAP_POPULATE"):
        delattr(mmap, name)
if SYSTEM == "win32":
    for name in ("register_at_fork", "fork", "geteuid", "getuid", "sysconf", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK",
                 "O_DIRECTORY", "getloadavg", "uname", "killpg", "setsid", "fchmod", "geteuid", "wait3", "wait4"):
        if hasattr(os, name):
            delattr(os, name)
    for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE", "pthread_sigmask", "setitimer"):
        if hasattr(signal, name):
            delattr(signal, name)
    for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_SHARED", "PROT_READ", "PROT_WRITE"):
        if hasattr(mmap, name):
            delattr(mmap, name)
    os.supports_dir_fd = os.supports_fd = set()
    for module in ("resource", "fcntl", "termios", "pwd", "grp", "tty", "pty", "curses", "readline"):
        sys.modules[module] = None
    del time.CLOCK_MONOTONIC
    library = ctypes.CDLL

    def of_a_file(name, *args, **kwargs):
        if name is None:
            raise TypeError("bad argument type for built-in operation")
        return library(name, *args, **kwargs)

    ctypes.CDLL = of_a_file
"""

EXPLAIN = """
import dovetail
from dovetail import ops
from dovetail.dtypes import f32
from dovetail.cli.main import main

builder = dovetail.Builder("layer")
x, w, b = builder.input("x", f32[8, 64]), builder.param("w", f32[64, 64]), builder.param("b", f32[64])
builder.output("y", ops.relu(x @ w + b))
graph = builder.graph()
assert dovetail.explain(graph).count("linear") == 1
dovetail.save(graph, "layer.mlir.dt")
assert main(["explain", "layer.mlir.dt"]) == 0 and main(["why", "layer.mlir.dt", "y"]) in (0, 1)
assert main(["doctor"]) == 0
onnx.save(onnx.helper.make_model(onnx.helper.make_graph(
    [onnx.helper.make_node("Relu", ["x"], ["y"])], "relu",
    [onnx.helper.make_tensor_value_info("x", 1, [4])], [onnx.helper.make_tensor_value_info("y", 1, [4])])), "relu.onnx")
assert main(["explain", "relu.onnx"]) == 0
feeds = {"x": numpy.ones((8, 64), numpy.float32)}
params = {"w": numpy.ones((64, 64), numpy.float32), "b": numpy.zeros(64, numpy.float32)}
"""

RUN = """
program = dovetail.compile(graph, target=TARGET, params=params, threads=2)
assert (program.run(feeds)["y"] == 64).all()
print("ran")
"""

REFUSED = """
try:
    dovetail.compile(graph, params=params)
except dovetail.errors.UnsupportedError as error:
    assert "Windows" in str(error) and "reference" in error.hint
    print("refused")
"""


def simulated(system: str, script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HIDE + EXPLAIN + script, system],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT / "src"), "HOME": str(folder), "XDG_CACHE_HOME": str(folder), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_macos_explains_compiles_and_runs(target: str, tmp_path: Path) -> None:
    assert simulated("darwin", RUN.replace("TARGET", repr(target)), tmp_path).endswith("ran\n")


@pytest.mark.slow
def test_windows_explains_and_runs_the_reference(tmp_path: Path) -> None:
    assert simulated("win32", RUN.replace("TARGET", '"reference"'), tmp_path).endswith("ran\n")


@pytest.mark.slow
def test_windows_refuses_to_compile_and_says_what_to_do(tmp_path: Path) -> None:
    assert simulated("win32", REFUSED, tmp_path).endswith("refused\n")
