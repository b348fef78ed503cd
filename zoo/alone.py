"""Each model in a process of its own: one that crashes, runs out of memory or hangs costs its own line alone."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from zoo.fetch import ROOT
from zoo.findings import Findings, as_dict, from_dict
from zoo.judged import attempt, chosen

MOST_SECONDS = 3600.0
"""A model that takes longer is ended."""


def judge(name: str, target: str, threads: int, most_seconds: float = MOST_SECONDS) -> Findings | None:
    """What a process of its own finds of the model; None where the model is skipped."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "findings.json"
        command = [sys.executable, "-m", "zoo.alone", name, "--target", target, "--threads", str(threads)]
        try:
            ended = subprocess.run([*command, "--into", str(into)], cwd=ROOT, timeout=most_seconds, check=False)
        except subprocess.TimeoutExpired:
            return Findings(name, f"it did not end within {most_seconds:.0f} seconds")
        if not into.is_file():
            return Findings(name, f"the process ended early: {_cause(ended.returncode)}")
        plain = json.loads(into.read_text(encoding="utf-8"))
    return None if plain is None else from_dict(plain)


def _cause(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    return f"signal {-status} ({signal.Signals(-status).name})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--into", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args()
    work = dict(chosen([], options.target, options.threads))[options.name]
    findings = attempt(options.name, work)
    plain = None if findings is None else as_dict(findings)
    options.into.write_text(json.dumps(plain), encoding="utf-8")


if __name__ == "__main__":
    main()
