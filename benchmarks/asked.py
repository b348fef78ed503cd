"""Processes of benchmarks that answer a line of words with a line of JSON."""

from __future__ import annotations

import json
import subprocess
from typing import Any


def asked(process: subprocess.Popen[str], words: str) -> dict[str, Any]:
    """The answer of a process; why there is none where it has ended."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(words + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    return json.loads(line) if line else {"refused": f"its process ended with {process.wait()}"}
