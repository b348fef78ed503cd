"""Generated text is compared to the letter, and rewritten only on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import Golden


def test_text_that_differs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("old\n")
    Golden(tmp_path).file("page.md", "old\n")
    with pytest.raises(AssertionError, match=r"page\.md is not what is generated now"):
        Golden(tmp_path).file("page.md", "new\n")
    with pytest.raises(AssertionError, match=r"other\.md is missing"):
        Golden(tmp_path).file("other.md", "new\n")
    assert (tmp_path / "page.md").read_text() == "old\n"


def test_rewriting_writes_and_removes(tmp_path: Path) -> None:
    Golden(tmp_path, rewrite=True).folder("pages", {"a.md": "a", "b.md": "b"})
    with pytest.raises(AssertionError, match=r"nothing generates \['b.md'\] in pages any more"):
        Golden(tmp_path).folder("pages", {"a.md": "a"})
    Golden(tmp_path, rewrite=True).folder("pages", {"a.md": "A"})
    Golden(tmp_path).folder("pages", {"a.md": "A"})
    assert [p.name for p in (tmp_path / "pages").iterdir()] == ["a.md"]
