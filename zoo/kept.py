"""What was found of each model, kept in build/models/report.json from run to run."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dovetail
from zoo.fetch import HOME, ROOT
from zoo.findings import Findings, as_dict, from_dict
from zoo.references import of_files

PATH = HOME / "report.json"


def build() -> str:
    """A digest of the sources that decide what is found."""
    folders = (Path(dovetail.__file__).parent, ROOT / "zoo")
    return of_files(*(path for folder in folders for path in sorted(folder.rglob("*.py"))))[:16]


def read(path: Path = PATH) -> dict[str, Findings]:
    """The findings by name; an entry that an older build wrote and that cannot be read is left out."""
    found: dict[str, Findings] = {}
    with contextlib.suppress(OSError, ValueError):
        entries: list[Mapping[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        for plain in entries:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                findings = from_dict(plain)
                found[findings.name] = findings
    return found


def add(findings: Findings, order: list[str], path: Path = PATH) -> list[Findings]:
    """Write one model's findings to those that are there, and return all in the given order. The file stays whole."""
    found = {**read(path), findings.name: findings}
    listed = [found[name] for name in order if name in found]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.write_text(json.dumps([as_dict(f) for f in listed], indent=2), encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return listed
