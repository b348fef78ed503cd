"""Pages name what there is: tasks of the Makefile, and every module of the large rooms."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

import pytest

import dovetail
from tests.sources import ROOT, SRC, parsed

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TASK = re.compile(r"(?:`|^|- run: )make ([a-z][a-z-]+)", re.MULTILINE)


def test_tasks_exist() -> None:
    tasks = set(re.findall(r"^([a-z][a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = [(page, task) for page in [*PAGES, *WORKFLOWS] for task in TASK.findall(page.read_text(encoding="utf-8"))]
    missing = [f"{page.relative_to(ROOT)}: make {task}" for page, task in named if task not in tasks]
    assert named and not missing, "\n".join(missing)


HISTORY = (ROOT / "docs" / "history", ROOT / "docs" / "design" / "notes")
"""Pages of what was once: files that they name may be gone."""
FILE = re.compile(r"`([\w./*-]+\.py)`|\]\((?!http)([\w./-]+\.py)\)")


@pytest.mark.slow
def test_files_that_pages_name_are_there() -> None:
    pages = [page for page in PAGES if not any(page.is_relative_to(folder) for folder in HISTORY)]
    named = {(page, a or b) for page in pages for a, b in FILE.findall(page.read_text(encoding="utf-8"))}
    files = ["/" + path.relative_to(ROOT).as_posix() for path in tracked_python()]
    gone = [
        f"{page.relative_to(ROOT)}: {name}"
        for page, name in named
        if not any(fnmatch(path, f"*/{name.removeprefix('./').replace('../', '')}") for path in files)
    ]
    assert len(named) > 100 and not gone, "\n".join(sorted(gone))


def tracked_python() -> list[Path]:
    """Python files of the rooms that pages speak of."""
    rooms = ("src", "tests", "fuzz", "zoo", "docs", "examples", "benchmarks")
    return [path for room in rooms for path in (ROOT / room).rglob("*.py")]


def test_actions_are_pinned_by_commit() -> None:
    used = [line for path in WORKFLOWS for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    loose = [line for line in used if not re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)]
    assert used and not loose, "\n".join(loose)


def test_what_workflows_run_is_there() -> None:
    texts = [path.read_text(encoding="utf-8") for path in WORKFLOWS]
    paths = {word for text in texts for word in re.findall(r"(?<![\w/])(?:tests|\.ci)/[\w/.]+", text)}
    assert paths and not [path for path in paths if not (ROOT / path).exists()]


LARGE = 3
"""Packages of the lower half with more modules than this list them in their docstring."""


def test_a_large_package_lists_its_modules_by_subject() -> None:
    wrong: list[str] = []
    for room in ("kernels", "codegen", "targets"):
        for init in (SRC / room).rglob("__init__.py"):
            modules = {p.stem for p in init.parent.glob("*.py")} - {"__init__"}
            named = set(re.findall(r"`(\w+)`", ast.get_docstring(parsed(init)) or ""))
            folders = {p.name for p in init.parent.iterdir() if p.is_dir()}
            package = init.parent.relative_to(SRC)
            if len(modules) > LARGE:
                wrong += [f"{package} does not name {m}" for m in sorted(modules - named)]
            if named:
                wrong += [f"{package} names {m}, which is not there" for m in sorted(named - modules - folders)]
    assert not wrong, "\n".join(wrong)


def test_every_decision_stands_in_the_index_of_design() -> None:
    folder = ROOT / "docs" / "design"
    index = (folder / "index.md").read_text(encoding="utf-8")
    pages = [p.relative_to(folder) for p in folder.rglob("*.md") if p.name != "index.md"]
    assert pages and not [page for page in pages if f"({page})" not in index]


def test_every_page_stands_in_the_navigation_of_the_site() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [p.name for p in (ROOT / "docs").glob("*.md")]
    assert not [page for page in pages if f": {page}\n" not in site]


def test_every_public_module_stands_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    named = re.findall(r"^<!-- names of ([\w.]+) -->$", page, re.MULTILINE)
    assert sorted(named) == sorted({"dovetail", *(f"dovetail.{name}" for name in dovetail.MODULES)} - {CATALOGUE})
    assert not [name for name in named if not hasattr(import_module(name), "__all__")]


CATALOGUE = "dovetail.library"
"""Its fused ops have pages of their own."""
