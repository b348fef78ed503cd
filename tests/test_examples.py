"""Every example runs, and so does every Python block of the README and the docs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[int, str]]:
    """The Python blocks of a page, each with the number of its first line."""
    return [(text.count("\n", 0, found.start(1)) + 1, found[1]) for found in FENCE.finditer(text)]


def run_page(text: str, name: str) -> dict[str, object]:
    """Runs the blocks of a page one after the other in one namespace, which it gives back."""
    namespace: dict[str, object] = {"__name__": "__page__"}
    for line, code in blocks(text):
        # Empty lines in front, so that a traceback names the line of the page.
        exec(compile("\n" * (line - 1) + code, name, "exec", dont_inherit=True), namespace)
    return namespace


PAGES = [p for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if blocks(p.read_text("utf-8"))]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout, "an example that shows nothing"


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_page_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(path.read_text(encoding="utf-8"), str(path))


def test_blocks_of_a_page_share_a_namespace() -> None:
    page = "# Page\n```python\nx = 1\n```\ntext\n```sh\nfalse\n```\n```python\ny = x + 1\n```\n"
    assert run_page(page, "page.md")["y"] == 2


def test_a_failing_block_names_its_line() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_page("# Page\n\n```python\nx = 0\n1 / x\n```\n", "page.md")
    assert (caught.traceback[-1].path, caught.traceback[-1].lineno) == ("page.md", 5 - 1)
