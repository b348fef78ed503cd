"""Files are written whole; what is no plain file stays what it is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dovetail.report.atomic_write import write_atomically


def test_a_link_is_followed(tmp_path: Path) -> None:
    kept, link = tmp_path / "kept.json", tmp_path / "link.json"
    kept.write_text("before")
    link.symlink_to(kept)
    assert write_atomically(link, "after", "trace") == link
    assert link.is_symlink() and kept.read_text() == "after"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "through\n", "page")
        assert stat.S_ISFIFO(pipe.stat().st_mode) and os.read(reader, 99) == b"through\n"
    finally:
        os.close(reader)
    assert os.listdir(tmp_path) == ["pipe"], "nothing is left beside it"
