"""Text in the tree that is generated: compared by the tests, rewritten by `make golden`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Golden:
    """Generated files below a root. Paths are written relative to it."""

    root: Path
    rewrite: bool = False

    def file(self, path: str, text: str) -> None:
        """The file holds exactly this text."""
        at = self.root / path
        if self.rewrite:
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_text(text, encoding="utf-8")
            return
        assert at.is_file(), f"{path} is missing: run `make golden` and look at the difference"
        found = at.read_text(encoding="utf-8")
        assert found == text, f"{path} is not what is generated now: run `make golden` and look at the difference"

    def folder(self, path: str, files: Mapping[str, str]) -> None:
        """The folder holds exactly these files."""
        at = self.root / path
        held = {str(p.relative_to(at)) for p in at.rglob("*") if p.is_file()} if at.is_dir() else set[str]()
        left_over = sorted(held - set(files))
        if self.rewrite:
            for name in left_over:
                (at / name).unlink()
        else:
            assert not left_over, f"nothing generates {left_over} in {path} any more: run `make golden`"
        for name, text in files.items():
            self.file(f"{path}/{name}", text)
