"""References in float64, each computed once and kept in build/references under the digest of what decides it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dovetail
from dovetail.plan.fingerprint import fingerprint
from dovetail.targets.reference.interpreter import evaluate
from zoo.fetch import ROOT

Array = NDArray[Any]
Arrays = Mapping[str, Array]

FOLDER = ROOT / "build" / "references"
MOST_BYTES = 4 << 30
"""Of the folder; the references that were read longest ago are removed first."""


class References:
    """A folder of arrays by digest. A file that cannot be read is computed again."""

    def __init__(self, folder: Path = FOLDER, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self.most_bytes = most_bytes

    def of_graph(self, graph: dovetail.Graph, feed: Arrays) -> Arrays:
        """The graph in float64. The key: the graph with its arrays, the feed, and the sources of what ops mean."""
        meaning = fingerprint(graph, target="reference", alignment=0, options={})
        key = digest(meaning, meanings(), *_spelled(graph.params), *_spelled(feed))
        return self.kept(key, lambda: evaluate(graph, feed, lift=True))

    def kept(self, key: str, compute: Callable[[], Arrays]) -> Arrays:
        """What is stored under the key, computed and stored where there is nothing yet."""
        path = self.folder / f"{key}.npz"
        with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            found = _read(path)
            os.utime(path)
            return found
        made = compute()
        _write(path, made)
        self._prune()
        return made

    def _prune(self) -> None:
        """Remove the files that were read longest ago until the rest fits."""
        files = sorted(self.folder.glob("*.npz"), key=lambda path: path.stat().st_mtime_ns)
        total = sum(path.stat().st_size for path in files)
        for path in files:
            if total <= self.most_bytes:
                break
            total -= path.stat().st_size
            path.unlink(missing_ok=True)


def digest(*parts: str | bytes) -> str:
    """A digest of texts and bytes; their lengths count, so that no two lists of parts are alike."""
    state = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.hexdigest()


def of_files(*files: Path) -> str:
    """A digest of what is in some files."""
    return digest(*(path.read_bytes() for path in files))


def meanings() -> str:
    """A digest of the sources that say what each op computes, and of the version of NumPy that computes it."""
    package = Path(dovetail.__file__).parent
    sources = [*(package / "ops").rglob("*.py"), *(package / "targets" / "runtime").glob("interpreter*.py")]
    return digest(np.__version__, *(path.read_bytes() for path in sorted(sources)))


def of_arrays(arrays: Arrays) -> str:
    """A digest of arrays with their names, dtypes and shapes."""
    return digest(*_spelled(arrays))


def _spelled(arrays: Arrays) -> list[str | bytes]:
    parts: list[str | bytes] = [str(len(arrays))]
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        parts += [name, f"{array.dtype} {arrays[name].shape}", array.tobytes()]
    return parts


def _read(path: Path) -> Arrays:
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
        names: list[str] = json.loads(str(stored["names"]))
        return {name: stored[f"arr_{index}"] for index, name in enumerate(names)}


def _write(path: Path, arrays: Arrays) -> None:
    """Write the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb") as file:
            np.savez(file, *arrays.values(), names=np.array(json.dumps(list(arrays))))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
