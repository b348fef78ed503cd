"""Object code that tests share: each LLVM text is compiled once, for all workers and for later runs.

Texts that differ in content names only share an entry: it holds the object file and the hashes in its names.

Programs are never kept here: a test that patches a pass must not meet a program that was compiled without it. The key
of an entry holds all that LLVM is given, and the files that drive LLVM and write entries: none can be stale.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dovetail.targets.cpu import jit
from dovetail.targets.cpu.isa import Host
from dovetail.targets.runtime.building import code_cache, llvm_calls
from dovetail.targets.runtime.building.code_cache import Skeleton, skeleton_of
from dovetail.targets.runtime.building.store import CodeStore, StoreKey

LIMIT = 1 << 30
"""Bytes that the folder may hold."""

_FILES = (jit.__file__, llvm_calls.__file__, code_cache.__file__, __file__)
_DRIVER = hashlib.blake2b(b"".join(Path(file).read_bytes() for file in _FILES), digest_size=12).hexdigest()
_END = b"\0"
"""Ends the list of hashes in an entry."""


@dataclass(frozen=True, slots=True)
class Keeper:
    """A folder of object code, and the compiler that is asked for what it lacks."""

    store: CodeStore
    compiler: Callable[..., bytes]

    def emit(self, text: str, *, vectorize: bool, optimize: bool, here: Host) -> bytes:
        """What `jit.emit` gives, from the folder where it has it."""
        skeleton = skeleton_of(text)
        key = key_of("object", skeleton.text, f"vectorize={vectorize} optimize={optimize}", here)
        entry = self.store.get(key)
        if entry is None:
            made = self.compiler(text, vectorize=vectorize, optimize=optimize, here=here)
            self.store.put(key, " ".join(skeleton.hashes).encode() + _END + made)
            return made
        hashes, _, made = entry.partition(_END)
        kept = Skeleton(skeleton.text, tuple(hashes.decode().split()))
        return made if kept == skeleton else kept.renamed(made, skeleton)


def key_of(kind: str, text: str, options: str, here: Host) -> StoreKey:
    """All that decides what LLVM makes of a text."""
    parts = {
        "text": hashlib.blake2b(text.encode(), digest_size=20).hexdigest(),
        "options": options,
        "machine": repr(here),
        "llvm": jit.toolchain()["llvm"],
        "driver": _DRIVER,
    }
    return StoreKey(kind, parts)


def keeper_of(setting: str, root: Path) -> Keeper | None:
    """The keeper that DOVETAIL_TEST_CACHE names: a folder, `off` for none, empty for the one of this tree."""
    if setting == "off":
        return None
    return Keeper(CodeStore(Path(setting or root / "build" / "test-cache").absolute(), LIMIT), jit.emit)
