"""A content-addressed store of compiled code for later processes: keyed by its sources, checked when it is read.

An entry has the parts of its key in words, so that `dovetail cache why` can show what differs. No pickle: a head, the
words as JSON, and bytes. Nothing here ever fails a compilation: where the folder cannot be used, there is no cache.

The file of an entry is little-endian:
    head      magic (8 bytes), version (u32), lengths of the words (u32) and of the content (u64), digest of both (16)
    words     JSON: the parts of its key, by name
    content   bytes
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

from dovetail.dataclass import dataclass
from dovetail.ir.serial_table import digest
from dovetail.settings import OFF, Settings
from dovetail.targets.runtime.building.folder import FORGOTTEN, PART, File, Folder, Unsafe

MAGIC = b"DOVECACH"
VERSION = 1
MOST_CONTENT = 1 << 30
"""Bytes that one entry may have."""
SWEEP_EVERY = 16
"""The folder is brought below its limit whenever a process has written this part of it."""
COUNTS = "counts"
"""The file with the hits and misses of processes."""
MOST_COUNTS = 1 << 16

UNREAD = "unread"
"""The kind of the entries that say why another one is of no use."""

_HEAD = struct.Struct("<8sIIQ16s")
_NAME = re.compile(r"[0-9a-f]{40}\.[a-z]+")
_COUNT = re.compile(rb"^(\d{1,12}) (\d{1,12}) (\d{1,12})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StoreKey:
    """The parts of an entry's key, by name. Equal parts are the same entry."""

    kind: str
    parts: Mapping[str, str]

    @property
    def words(self) -> bytes:
        return json.dumps({"kind": self.kind, **self.parts}, sort_keys=True).encode()

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{hashlib.blake2b(self.words, digest_size=20).hexdigest()}.{self.kind}"


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The content of a store, and its hits."""

    folder: str
    entries: dict[str, int]
    """How many there are of each kind."""
    bytes: int
    limit: int
    hits: int
    misses: int
    written: int
    problem: str
    """Why there is no cache; empty where there is one."""
    unread: dict[str, str]
    """Entries that could not be kept or read back, with the reason: what they are for is compiled in every process."""


class CodeStore:
    """Entries in a folder. Many processes may use one at once, and any of them may die at any moment."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.limit = limit
        self.problem = ""
        self.hits = self.misses = self.written = 0
        self._fresh = limit
        """Bytes written since the last sweep; the first write of a process is followed by one."""
        self._lock = threading.Lock()
        self._folder: Folder | None = None
        try:
            self._folder = Folder(path)
        except Unsafe as error:
            self.problem = str(error)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.problem = f"{path} cannot be used: {why}"

    def get(self, key: StoreKey) -> bytes | None:
        """The content of an entry, or None. One that is damaged is removed."""
        content = None
        if self._folder is not None:
            raw = self._folder.read(key.name, use=True)
            content = None if raw is None else _content(raw, key.words)
            if raw is not None and content is None:
                self._folder.remove(key.name)
        with self._lock:
            self.hits += content is not None
            self.misses += content is None
        return content

    def has(self, key: StoreKey) -> bool:
        """Whether there is an entry, without counting the lookup."""
        return self.peek(key) is not None

    def peek(self, key: StoreKey) -> bytes | None:
        """The content of an entry, without counting the lookup."""
        raw = None if self._folder is None else self._folder.read(key.name)
        return None if raw is None else _content(raw, key.words)

    def put(self, key: StoreKey, content: bytes) -> None:
        """Keep an entry; where that fails, there is none."""
        if self._folder is None:
            return
        most = min(MOST_CONTENT, self.limit)
        if len(content) > most:
            self.refuse(key, f"it has {len(content):,} bytes, and an entry has at most {most:,}")
            return
        head = _HEAD.pack(MAGIC, VERSION, len(key.words), len(content), digest(key.words, content))
        try:
            self._folder.write(key.name, (head, key.words, content))
        except OSError as error:
            self.problem = f"{self.path} cannot be written: {error.strerror}"
            return
        with self._lock:
            self.written += 1
            self._fresh += len(content)
            due = self._fresh * SWEEP_EVERY > self.limit
            self._fresh = 0 if due else self._fresh
        if due:
            self.sweep()

    def refuse(self, key: StoreKey, reason: str) -> None:
        """Note that an entry cannot be kept or read back, and why: `dovetail cache` tells it."""
        note = json.dumps({"entry": key.name, "reason": reason}).encode()
        if key.kind != UNREAD and len(note) <= self.limit:
            self.put(_note_of(key), note)

    def accept(self, key: StoreKey) -> None:
        """Forget what was noted of an entry: it was read back."""
        if self._folder is not None:
            self._folder.remove(_note_of(key).name)

    def refusal(self, key: StoreKey) -> str:
        """Why an entry cannot be kept or read back; empty where no reason was noted."""
        content = self.peek(_note_of(key))
        return "" if content is None else str(json.loads(content)["reason"])

    def sweep(self) -> None:
        """Remove what dead processes left, then what was used longest ago until the rest is below the limit."""
        if self._folder is None:
            return
        entries: list[File] = []
        for file in self._files():
            if file.name.endswith(PART):
                if time.time() - file.used > FORGOTTEN:
                    self._folder.remove(file.name)
            elif _NAME.fullmatch(file.name):
                entries.append(file)
        total = sum(file.size for file in entries)
        for file in sorted(entries, key=lambda file: file.used):
            if total <= self.limit:
                break
            self._folder.remove(file.name)
            total -= file.size

    def clear(self) -> int:
        """Remove every file of ours, and nothing else; gives how many entries there were."""
        count = 0
        for file in list(self._files()):
            entry = bool(_NAME.fullmatch(file.name))
            if self._folder is not None and (entry or file.name == COUNTS or file.name.endswith(PART)):
                self._folder.remove(file.name)
                count += entry
        self.hits = self.misses = self.written = 0
        return count

    def keys(self, kind: str) -> Iterator[Mapping[str, str]]:
        """The parts of every entry of a kind that can be read, those that were used last first."""
        for file in sorted(self._files(), key=lambda file: -file.used):
            if file.name.endswith(f".{kind}") and _NAME.fullmatch(file.name) and self._folder is not None:
                words = _words(self._folder.read(file.name) or b"")
                if words is not None:
                    yield words

    def status(self) -> StoreStatus:
        """Count what the folder holds; hits are those of all processes that ended, and of this one."""
        entries: dict[str, int] = {}
        unread: dict[str, str] = {}
        total = 0
        for file in self._files():
            if not _NAME.fullmatch(file.name):
                continue
            total += file.size
            kind = file.name.rpartition(".")[2]
            if kind != UNREAD:
                entries[kind] = entries.get(kind, 0) + 1
            elif (note := self._note(file.name)) is not None:
                unread[note[0]] = note[1]
        counted = self._counted()
        mine = (self.hits, self.misses, self.written)
        hits, misses, written = (a + b for a, b in zip(counted, mine, strict=True))
        return StoreStatus(str(self.path), entries, total, self.limit, hits, misses, written, self.problem, unread)

    def tell(self) -> None:
        """Add the hits and misses of this process to the shared counts."""
        mine = (self.hits, self.misses, self.written)
        if self._folder is None or not any(mine):
            return
        with suppress(OSError):
            if any(f.name == COUNTS and f.size > MOST_COUNTS for f in self._files()):
                self._folder.write(COUNTS, [b"%d %d %d\n" % self._counted()])
            self._folder.append(COUNTS, b"%d %d %d\n" % mine)
        self.hits = self.misses = self.written = 0

    def _counted(self) -> tuple[int, int, int]:
        raw = (None if self._folder is None else self._folder.read(COUNTS)) or b""
        rows = [tuple(map(int, row)) for row in _COUNT.findall(raw)]
        return cast("tuple[int, int, int]", tuple(map(sum, zip(*rows, strict=True))) if rows else (0, 0, 0))

    def _note(self, name: str) -> tuple[str, str] | None:
        """The entry that a note is about, and what it says."""
        raw = (None if self._folder is None else self._folder.read(name)) or b""
        words = _words(raw)
        content = None if words is None else _content(raw, raw[_HEAD.size : _HEAD.size + _HEAD.unpack_from(raw)[2]])
        if content is None:
            return None
        note = json.loads(content)
        return str(note["entry"]), str(note["reason"])

    def _files(self) -> list[File]:
        try:
            return [] if self._folder is None else list(self._folder.files())
        except OSError:
            return []


def store_of(settings: Settings) -> CodeStore | None:
    """The store of the settings; None where they turn it off."""
    return None if settings.cache == OFF else _store(folder_of(settings), settings.cache_limit)


def folder_of(settings: Settings) -> Path:
    """The folder that settings name, or the user's own for caches."""
    if settings.cache:
        return Path(settings.cache).absolute()
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    base = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~")) / ".cache"
    return base.absolute() / "dovetail"


@cache
def _store(path: Path, limit: int) -> CodeStore:
    store = CodeStore(path, limit)
    atexit.register(store.tell)
    return store


def _note_of(key: StoreKey) -> StoreKey:
    """The key of the note that says why an entry is of no use."""
    return StoreKey(UNREAD, {"entry": key.name})


def _content(raw: bytes, words: bytes) -> bytes | None:
    """Return the content of an entry that is whole and has this key."""
    if len(raw) < _HEAD.size:
        return None
    magic, version, length, size, expected = _HEAD.unpack_from(raw)
    start = _HEAD.size + length
    if (magic, version, len(raw)) != (MAGIC, VERSION, start + size) or raw[_HEAD.size : start] != words:
        return None
    content = raw[start:]
    return content if digest(words, content) == expected else None


def _words(raw: bytes) -> Mapping[str, str] | None:
    """Read the parts of an entry's key."""
    if len(raw) < _HEAD.size:
        return None
    words = raw[_HEAD.size : _HEAD.size + _HEAD.unpack_from(raw)[2]]
    if _content(raw, words) is None:
        return None
    parts: dict[str, Any] = json.loads(words)
    return {name: str(part) for name, part in parts.items()}
