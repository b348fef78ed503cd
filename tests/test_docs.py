"""Pages name what there is: tasks of the Makefile, and every module of the large rooms."""

from __future__ import annotations

import ast
import re

from tests.sources import ROOT, SRC, parsed

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
TASK = re.compile(r"(?:`|^)make ([a-z][a-z-]+)", re.MULTILINE)


def test_tasks_exist() -> None:
    tasks = set(re.findall(r"^([a-z][a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = [(page, task) for page in PAGES for task in TASK.findall(page.read_text(encoding="utf-8"))]
    missing = [f"{page.relative_to(ROOT)}: make {task}" for page, task in named if task not in tasks]
    assert named and not missing, "\n".join(missing)


LARGE = 12
"""Packages of the lower half with more modules than this list them in their docstring."""


def test_a_large_package_lists_its_modules_by_subject() -> None:
    wrong: list[str] = []
    for room in ("kernels", "codegen", "targets/gpu", "targets/cuda", "targets/runtime"):
        for init in (SRC / room).rglob("__init__.py"):
            modules = {p.stem for p in init.parent.glob("*.py")} - {"__init__"}
            named = set(re.findall(r"`(\w+)`", ast.get_docstring(parsed(init)) or ""))
            folders = {p.name for p in init.parent.iterdir() if p.is_dir()}
            package = init.parent.relative_to(SRC)
            if len(modules) > LARGE and package.parts[-1] not in ("families", "problems", "llvm"):
                wrong += [f"{package} does not name {m}" for m in sorted(modules - named)]
            if named:
                wrong += [f"{package} names {m}, which is not there" for m in sorted(named - modules - folders)]
    assert not wrong, "\n".join(wrong)
