"""`dovetail serve`: a process that tells where it listens, answers, and ends cleanly on a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Shell
from tests.cli.test_generate import path

__all__ = ["path"]


def asked(address: str, key: str, said: Any = None) -> Any:
    """The answer to a request, as JSON."""
    given = None if said is None else json.dumps(said).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, given, headers), timeout=60) as answer:
        return json.loads(answer.read())


@pytest.mark.exhaustive
def test_a_server_answers_and_ends_on_a_signal(path: Path, tmp_path: Path) -> None:
    key = tmp_path / "key.txt"
    key.write_text("secret\n")
    command = [
        sys.executable,
        "-m",
        "dovetail",
        "serve",
        str(path),
        "--port",
        "0",
        "--key",
        f"@{key}",
        "--name",
        "tiny",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        address = line.split()[0]
        assert line.startswith("http://127.0.0.1:") and "serves tiny" in line
        assert [one["id"] for one in asked(f"{address}/models", "secret")["data"]] == ["tiny"]
        found = asked(f"{address}/completions", "secret", {"model": "tiny", "prompt": "hello", "max_tokens": 3})
        assert found["usage"]["completion_tokens"] <= 3
        with pytest.raises(urllib.error.HTTPError) as refused:
            asked(f"{address}/models", "wrong")
        assert refused.value.code == 401
        refused.value.close()
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slots", "0"], "a limit or port out of range"),
        (["--seconds", "nan"], "a limit or port out of range"),
        (["--slots", "100000000"], "--slots"),
        (["--port", "70000"], "a limit or port out of range"),
        (["--port", "0", "--key", "@absent.txt"], "cannot be read"),
        (["--port", "0", "--host", "0.0.0.0"], "key"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], said: str, path: Path, shell: Shell) -> None:
    found = shell("serve", str(path), *arguments)
    assert found.code == 1 and said in found.err and "hint:" in found.err and not found.out
