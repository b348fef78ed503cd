"""Object code that tests share: each LLVM text is compiled once, for all workers and for later runs.

Programs are never kept here: a test that removes a defence must not meet a program that was compiled with it. The key
of an entry holds all that LLVM is given, and the file that drives LLVM, so that an entry cannot be stale.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dovetail.targets.cpu import jit
from dovetail.targets.cpu.isa import Host
from dovetail.targets.runtime.store import Key, Store

LIMIT = 1 << 30
"""Bytes that the folder may hold."""

_DRIVER = hashlib.blake2b(Path(jit.__file__).read_bytes(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class Keeper:
    """A folder of object code, and the compiler that is asked for what it lacks."""

    store: Store
    compiler: Callable[..., bytes]

    def emit(self, text: str, *, vectorize: bool, optimize: bool, here: Host) -> bytes:
        """What `jit.emit` gives, from the folder where it has it."""
        key = key_of("object", text, f"vectorize={vectorize} optimize={optimize}", here)
        found = self.store.get(key)
        if found is None:
            found = self.compiler(text, vectorize=vectorize, optimize=optimize, here=here)
            self.store.put(key, found)
        return found


def key_of(kind: str, text: str, options: str, here: Host) -> Key:
    """All that decides what LLVM makes of a text."""
    parts = {
        "text": hashlib.blake2b(text.encode(), digest_size=20).hexdigest(),
        "options": options,
        "machine": repr(here),
        "llvm": jit.toolchain()["llvm"],
        "driver": _DRIVER,
    }
    return Key(kind, parts)


def keeper_of(setting: str, root: Path) -> Keeper | None:
    """The keeper that DOVETAIL_TEST_CACHE names: a folder, `off` for none, empty for the one of this tree."""
    if setting == "off":
        return None
    return Keeper(Store(Path(setting or root / "build" / "test-cache").absolute(), LIMIT), jit.emit)
