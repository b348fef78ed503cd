"""Every hostile file ends in one typed error, or loads where it is legal: within a second of work and 200 MB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import external, files, graphs, headers, nesting, operators, tensors
from tests.hostile.case import Case

ROOT = Path(__file__).resolve().parent.parent.parent
CASES = (
    *files.CASES,
    *graphs.CASES,
    *nesting.CASES,
    *tensors.CASES,
    *external.CASES,
    *operators.CASES,
    *headers.CASES,
)
MOST_BYTES = 200 << 20
LONGEST_LINE = 600
LONGEST_MESSAGE = 16_000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits of a process are those of Linux")


class Server:
    """A warm process that loads files in forks of its own."""

    def __init__(self, folder: Path) -> None:
        # One thread: a process with several is not safe to fork.
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.server", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
            text=True,
        )
        assert self._line() == "ready\n"

    def ask(self, path: Path, stage: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"path": str(path), "stage": stage}) + "\n")
        self.process.stdin.flush()
        return json.loads(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("warm"))
    yield made
    made.close()


def test_there_are_enough_files() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert len([c for c in CASES if c.stage != "safetensors"]) >= 100
    assert len([c for c in CASES if c.stage == "safetensors"]) >= 25
    assert all(len(case.story.split()) >= 3 for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_file(case: Case, server: Server, tmp_path: Path) -> None:
    path = case.file(tmp_path)
    found = server.ask(path, case.stage)
    assert "crash" not in found, f"{case.name} ({case.story}) ended in {found}"
    said = f"{case.name} ({case.story}): {found}"
    if case.ends:
        assert "DovetailError" in found["bases"], said
        assert found["error"] in case.ends, said
        assert case.says in found["message"], said
        assert found["hint"], said
        assert_plain(found["message"])
    else:
        assert not found["error"], said
    assert found["seconds"] < found["most_seconds"], said
    assert found["bytes"] < MOST_BYTES, said


def assert_plain(message: str) -> None:
    lines = message.split("\n")
    assert len(message) <= LONGEST_MESSAGE and max(map(len, lines)) <= LONGEST_LINE, message
    assert all(line.isprintable() for line in lines), ascii(message)


@pytest.mark.exhaustive
def test_the_limits_bind(server: Server, tmp_path: Path) -> None:
    """What takes too much is noticed: memory, time, and a process that dies."""
    assert server.ask(tmp_path, "greedy")["error"] == "MemoryError"
    assert server.ask(tmp_path, "endless") == {"crash": "SIGXCPU"}
    assert server.ask(tmp_path, "crash") == {"crash": "SIGABRT"}
