"""Two processes of JAX as one machine: each has half of the devices, and both get the whole result."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from dovetail import Builder, compile, ops
from dovetail.dtypes import f32
from dovetail.errors import PeerError
from dovetail.targets import xla
from dovetail.targets.xla.hosts import compare, join, leave

join(sys.argv[1], 2, int(sys.argv[2]), timeout=60, joining=60)
compare({"the model": "one"})
try:
    compare({"the model": sys.argv[2]})
except PeerError as error:
    assert "rank 1 on" in str(error) and "has the model 1, and rank 0" in str(error) and error.rank == 1
else:
    raise AssertionError("unlike processes go on")
builder = Builder("network")
x, w = builder.input("x", f32[4, 8]), builder.param("w", f32[8, 2])
builder.output("y", ops.matmul(x, w))
program = compile(builder.graph(), target=xla.target(mesh={"dp": 2, "tp": 2}, place={"x": "dp tp", "w": "tp"}))
weights, given = (np.arange(n, dtype=np.float32).reshape(s) for n, s in ((16, (8, 2)), (32, (4, 8))))
program.bind({"w": weights})
np.testing.assert_array_equal(program.run({"x": given})["y"], given @ weights)
Path(sys.argv[3]).write_text("equal")
leave()
"""


@pytest.mark.exhaustive
def test_two_processes_run_one_program(tmp_path: Path) -> None:
    # Each tells through a file: Gloo writes to standard output too, now and then into the middle of a line.
    verdicts = [tmp_path / f"{rank}" for rank in (0, 1)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "DOVETAIL_CACHE": "off",
    }
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, f"127.0.0.1:{port}", str(rank), str(verdict)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for rank, verdict in enumerate(verdicts)
    ]
    try:
        said = [host.communicate(timeout=120) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert all(verdict.exists() and verdict.read_text() == "equal" for verdict in verdicts), said
