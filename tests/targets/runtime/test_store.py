"""The store of what was compiled: private, whole or absent, bounded, and never a reason to fail."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail.settings import Settings, settings_of
from dovetail.targets.runtime.building.folder import FORGOTTEN, Folder, Unsafe
from dovetail.targets.runtime.building.store import CodeStore, StoreKey, folder_of, store_of

LIMIT = 1 << 20
KEY = StoreKey("code", {"text": "abc", "host": "here"})
CONTENT = bytes(range(256)) * 8


@pytest.fixture
def store(tmp_path: Path) -> CodeStore:
    return CodeStore(tmp_path / "cache", LIMIT)


def file_of(store: CodeStore, key: StoreKey = KEY) -> Path:
    return store.path / key.name


def test_what_is_put_is_got_by_equal_parts(store: CodeStore) -> None:
    assert store.get(KEY) is None
    store.put(KEY, CONTENT)
    assert store.get(StoreKey("code", {"host": "here", "text": "abc"})) == CONTENT
    assert CodeStore(store.path, LIMIT).get(KEY) == CONTENT
    assert store.get(StoreKey("code", {"text": "abc", "host": "there"})) is None
    assert store.get(StoreKey("other", KEY.parts)) is None
    store.put(KEY, b"")
    assert store.get(KEY) == b""


def test_folder_and_files_are_private(store: CodeStore) -> None:
    previous = os.umask(0)
    try:
        store.put(KEY, CONTENT)
        made = CodeStore(store.path.parent / "other", LIMIT)
    finally:
        os.umask(previous)
    assert not made.problem
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(file_of(store).stat().st_mode) == 0o600


@pytest.mark.parametrize("at", [0, 9, 13, 20, 30, 45, 60, 200, -1])
def test_a_changed_byte_is_found_and_the_entry_rebuilt(store: CodeStore, at: int) -> None:
    store.put(KEY, CONTENT)
    whole = bytearray(file_of(store).read_bytes())
    whole[at] ^= 1
    file_of(store).write_bytes(whole)
    assert store.get(KEY) is None
    assert not file_of(store).exists()
    store.put(KEY, CONTENT)
    assert store.get(KEY) == CONTENT


@pytest.mark.parametrize("length", [0, 1, 39, 40, 41, 100, -1])
def test_a_file_that_is_cut_off_is_no_entry(store: CodeStore, length: int) -> None:
    store.put(KEY, CONTENT)
    file_of(store).write_bytes(file_of(store).read_bytes()[:length])
    assert store.get(KEY) is None and not file_of(store).exists()


def test_the_entry_of_another_key_is_not_taken_for_it(store: CodeStore) -> None:
    other = StoreKey("code", {"text": "xyz", "host": "here"})
    store.put(other, CONTENT)
    file_of(store, other).rename(file_of(store))
    assert store.get(KEY) is None


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, mode: int) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    store = CodeStore(tmp_path / "cache", LIMIT)
    store.put(KEY, CONTENT)
    assert store.get(KEY) is None and "can be written by others" in store.status().problem
    assert not list((tmp_path / "cache").iterdir())


def test_a_file_that_others_can_write_is_not_read(store: CodeStore) -> None:
    store.put(KEY, CONTENT)
    file_of(store).chmod(0o620)
    assert store.get(KEY) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_what_belongs_to_another_user_is_not_used(store: CodeStore, tmp_path: Path) -> None:
    store.put(KEY, CONTENT)
    os.chown(file_of(store), 12345, 12345)
    assert store.get(KEY) is None
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)
    assert "belongs to the user 12345" in CodeStore(tmp_path / "theirs", LIMIT).problem


def test_links_are_not_followed(store: CodeStore, tmp_path: Path) -> None:
    store.put(KEY, CONTENT)
    aside = tmp_path / "aside"
    file_of(store).rename(aside)
    file_of(store).symlink_to(aside)
    assert store.get(KEY) is None
    file_of(store).unlink()
    os.link(aside, file_of(store))
    assert store.get(KEY) is None
    (tmp_path / "link").symlink_to(store.path)
    assert "is a link" in CodeStore(tmp_path / "link", LIMIT).problem
    with pytest.raises(Unsafe):
        Folder(tmp_path / "link")


def test_a_link_in_the_place_of_an_entry_is_replaced_and_not_written_through(store: CodeStore, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    file_of(store).symlink_to(tmp_path / "precious")
    store.put(KEY, CONTENT)
    assert (tmp_path / "precious").read_text() == "mine" and store.get(KEY) == CONTENT


def test_a_pipe_in_the_place_of_an_entry_does_not_block(store: CodeStore) -> None:
    os.mkfifo(file_of(store), 0o600)
    assert store.get(KEY) is None


def test_without_a_folder_there_is_no_cache_and_the_reason_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = CodeStore(tmp_path / "file" / "cache", LIMIT)
    store.put(KEY, CONTENT)
    assert store.get(KEY) is None and store.clear() == 0
    assert "cannot be used: " in store.status().problem


def test_a_folder_that_vanishes_is_a_miss(store: CodeStore) -> None:
    store.put(KEY, CONTENT)
    file_of(store).unlink()
    store.path.rmdir()
    assert store.get(KEY) is None
    store.put(KEY, CONTENT)
    assert store.get(KEY) is None and store.problem


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "cache", 10_000)
    keys = [StoreKey("code", {"text": str(i)}) for i in range(9)]
    for age, key in enumerate(keys):
        store.put(key, bytes(1000))
        os.utime(file_of(store, key), (0, time.time() - 10_000 + age))
    assert store.get(keys[0]) is not None  # and so it is the last now
    store.sweep()
    assert store.status().bytes <= 10_000 and all(store.has(key) for key in keys)
    store.put(StoreKey("code", {"text": "more"}), bytes(2500))
    store.sweep()
    assert store.status().bytes <= 10_000
    assert [store.has(key) for key in keys[:3]] == [True, False, False]
    assert all(store.has(key) for key in keys[4:])


def test_writing_sweeps_by_itself(tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "cache", 20_000)
    for i in range(100):
        store.put(StoreKey("code", {"text": str(i)}), bytes(1000))
    assert store.status().bytes <= 20_000 * 17 // 16 + 2000
    store.put(KEY, bytes(20_001))
    assert not store.has(KEY)


def test_files_of_writers_that_died_are_removed_once_they_are_old(store: CodeStore) -> None:
    old, young = store.path / ".a.part", store.path / ".b.part"
    for part in (old, young):
        part.write_bytes(b"half")
    os.utime(old, (0, time.time() - FORGOTTEN - 1))
    store.sweep()
    assert not old.exists() and young.exists()


def test_clear_removes_our_files_and_nothing_else(store: CodeStore) -> None:
    store.put(KEY, CONTENT)
    store.put(StoreKey("program", KEY.parts), CONTENT)
    store.tell()
    (store.path / "notes.txt").write_text("mine")
    (store.path / ".x.part").write_text("half")
    assert store.clear() == 2
    assert [p.name for p in store.path.iterdir()] == ["notes.txt"]


def test_counts_of_processes_add_up(store: CodeStore) -> None:
    for _ in range(3):
        other = CodeStore(store.path, LIMIT)
        other.get(KEY)
        other.put(KEY, CONTENT)
        other.get(KEY)
        other.tell()
        other.tell()
    store.get(KEY)
    status = store.status()
    assert (status.hits, status.misses, status.written) == (3 + 2 + 1, 1, 3)
    assert status.entries == {"code": 1} and status.limit == LIMIT and status.bytes == file_of(store).stat().st_size


def test_counts_that_were_tampered_with_do_no_harm(store: CodeStore) -> None:
    store.put(KEY, CONTENT)
    (store.path / "counts").write_bytes(b"1 2 3\nx\n99999999999999999999 1 1\n4 5")
    status = store.status()
    assert (status.hits, status.misses, status.written) == (1, 2, 3 + 1)


WRITER = """
import sys
from pathlib import Path
from dovetail.targets.runtime.building.store import CodeStore, StoreKey
store = CodeStore(Path(sys.argv[1]), 1 << 28)
for turn in range(int(sys.argv[2])):
    for i in range(8):
        key = StoreKey("code", {"text": str(i)})
        found = store.get(key)
        assert found is None or found == bytes([i]) * (1 << 16), "half an entry"
        store.put(key, bytes([i]) * (1 << 16))
    print(turn, flush=True)
assert not store.problem, store.problem
"""


@pytest.mark.exhaustive
def test_many_writers_and_readers_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "cache"), "25"]
    writers = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
    store = CodeStore(tmp_path / "cache", 1 << 28)
    while any(writer.poll() is None for writer in writers):
        for i in range(8):
            assert store.get(StoreKey("code", {"text": str(i)})) in (None, bytes([i]) * (1 << 16))
        time.sleep(0.001)
    assert [w.communicate()[1] for w in writers] == [b"", b""]
    assert not list((tmp_path / "cache").glob(".*.part"))
    assert [store.get(StoreKey("code", {"text": str(i)})) for i in range(8)] == [
        bytes([i]) * (1 << 16) for i in range(8)
    ]


@pytest.mark.slow
def test_a_writer_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "cache"), "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline()
        # Part files come and go: it is killed while there is one, if that can be seen.
        until = time.monotonic() + 0.2
        while time.monotonic() < until and not list((tmp_path / "cache").glob(".*.part")):
            pass
        writer.send_signal(signal.SIGKILL)
    store = CodeStore(tmp_path / "cache", 1 << 28)
    for i in range(8):
        assert store.get(StoreKey("code", {"text": str(i)})) in (None, bytes([i]) * (1 << 16))
    for part in store.path.glob(".*.part"):
        os.utime(part, (0, 0))
    store.sweep()
    assert not list(store.path.glob(".*.part"))


def test_folder_that_settings_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_of(Settings(cache="off")) is None
    assert folder_of(Settings(cache=str(tmp_path / "mine"))) == tmp_path / "mine"
    assert folder_of(settings_of({}, {"DOVETAIL_CACHE": str(tmp_path)})) == tmp_path
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert folder_of(Settings()) == tmp_path / "xdg" / "dovetail"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert folder_of(Settings()) == tmp_path / "home" / ".cache" / "dovetail"


@pytest.mark.slow
def test_tests_and_the_processes_that_they_start_do_not_touch_the_cache_of_the_user() -> None:
    assert store_of(settings_of({}, os.environ)) is None
    script = "import os; from dovetail.settings import settings_of; print(settings_of({}, os.environ).cache)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "off\n"
