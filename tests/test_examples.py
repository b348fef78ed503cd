"""Every example runs, and so does every Python block of the README and the docs.

A `text` block after a Python block is what that prints, and a `console` block is a command with what it prints; one
that shows nothing is only run, and a line of three dots ends one that shows the beginning. `make golden` rewrites both.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.cli.commands import Shell, cut_like
from tests.golden import Golden

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = [
    path for path in sorted((ROOT / "examples").glob("*.py")) if "import torch\n" not in path.read_text("utf-8")
]
"""Those of torch are run by tests/frontends/torch/test_examples.py."""
FENCE = re.compile(
    r"^```python\n(?P<code>.*?)^```$(\n\n```text\n(?P<printed>.*?)^```$)?"
    r"|^```console\n\$ dovetail (?P<command>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)]*)?\)")
"""A link to a file of the tree."""


class Page:
    """Runs the blocks of a page one after the other, Python in one namespace, and notes what they print."""

    def __init__(self, name: str, capture: pytest.CaptureFixture[str]) -> None:
        self.name = name
        self.capture = capture
        self.namespace: dict[str, object] = {"__name__": "__page__"}

    def run(self, text: str) -> str:
        """The page with what its blocks print now."""
        return FENCE.sub(self._block, text)

    def _block(self, found: re.Match[str]) -> str:
        self.capture.readouterr()
        if found["command"] is not None:
            return self._command(found)
        # Empty lines in front, so that a traceback names the line of the page.
        above = "\n" * found.string.count("\n", 0, found.start("code"))
        exec(compile(above + found["code"], self.name, "exec", dont_inherit=True), self.namespace)
        printed = self.capture.readouterr().out
        return found[0] if found["printed"] is None else f"```python\n{found['code']}```\n\n```text\n{printed}```"

    def _command(self, found: re.Match[str]) -> str:
        line, _, shown = found["command"].partition("\n")
        said = Shell(self.capture)(*shlex.split(line))
        assert said.code == 0, said.err
        return f"```console\n$ dovetail {line}\n{cut_like(said.out, shown) if shown else ''}```"


PAGES = [
    p for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if "```python\n" in p.read_text("utf-8")
]


def run_example(path: Path, folder: Path) -> str:
    """What a script prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    assert run_example(path, tmp_path), "an example that shows nothing"


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_page_runs(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = path.read_text(encoding="utf-8")
    if "import torch\n" in text:
        pytest.importorskip("torch")
        monkeypatch.setattr(warnings, "filters", [("ignore", None, Warning, None, 0)])  # torch warns of its own code
    if "dovetail.targets import xla" in text:
        pytest.importorskip("jax")
    golden.file(str(path.relative_to(ROOT)), Page(str(path), capsys).run(text))


def test_the_readme_is_run_and_shows_a_command() -> None:
    readme = ROOT / "README.md"
    assert readme in PAGES
    assert any(found["command"] for found in FENCE.finditer(readme.read_text(encoding="utf-8")))


def test_links_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in LINK.findall(page.read_text(encoding="utf-8"))]
    broken = [f"{page.relative_to(ROOT)}: {link}" for page, link in links if not (page.parent / link).exists()]
    assert links and not broken, "\n".join(broken)


def test_every_page_stands_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = [p.name for kind in ("*.md", "*.py") for p in (ROOT / "docs").glob(kind) if p.name != "index.md"]
    assert not [name for name in pages if f"({name})" not in index]


@pytest.mark.slow
def test_from_scratch_says_what_fused_and_what_did_not(tmp_path: Path) -> None:
    said = run_example(ROOT / "docs" / "from_scratch.py", tmp_path)
    first, second = said.split("Follow the hint")
    assert "16 ops → 9 kernels" in first and "16 ops → 7 kernels" in second
    assert "bias_is_a_vector: the bias is (64, 256)" in first and "bias_is_a_vector" not in second
    assert second.count("FUSED   linear") == 2 and second.count("it_pays") == 1
    assert "there is tanh and not sqrt" in second


@pytest.mark.slow
def test_the_second_from_scratch_file_shows_its_text_its_judgement_and_its_vectors(tmp_path: Path) -> None:
    said = run_example(ROOT / "docs" / "from_scratch_kernel.py", tmp_path)
    text, rest = said.split("--- compiled, run and judged")
    judged, assembly = rest.split("--- the first kernel in machine code")
    assert "define void @scaled(ptr noalias %x" in text and "@llvm.maxnum.f32" in text
    assert judged.count("from float64") == 6 and judged.count("softmax") == 3
    assert re.search(r"[xyz]mm\d|v\d+\.4s", assembly), "one vector for several elements"


def test_blocks_of_a_page_share_a_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    page = Page("page.md", capsys)
    page.run("# Page\n```python\nx = 1\n```\ntext\n```sh\nfalse\n```\n```python\ny = x + 1\n```\n")
    assert page.namespace["y"] == 2


def test_what_blocks_print_is_put_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    silent, shown = "```python\nprint(1)\n```\n", "```python\nprint(2)\n```\n\n```text\nold\n```\n"
    assert Page("page.md", capsys).run(silent + shown) == silent + shown.replace("old", "2")
    asked = Page("page.md", capsys).run("```console\n$ dovetail catalog silu\nold\n```\n")
    assert "# `silu`" in asked and "old" not in asked


def test_a_failing_block_names_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        Page("page.md", capsys).run("# Page\n\n```python\nx = 0\n1 / x\n```\n")
    assert (caught.traceback[-1].path, caught.traceback[-1].lineno) == ("page.md", 5 - 1)
