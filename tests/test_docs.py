"""Pages name what there is: tasks of the Makefile, and every module of the large rooms."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from tests.sources import ROOT, SRC

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
TASK = re.compile(r"(?:`|^)make ([a-z][a-z-]+)", re.MULTILINE)


def test_tasks_exist() -> None:
    tasks = set(re.findall(r"^([a-z][a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = [(page, task) for page in PAGES for task in TASK.findall(page.read_text(encoding="utf-8"))]
    missing = [f"{page.relative_to(ROOT)}: make {task}" for page, task in named if task not in tasks]
    assert named and not missing, "\n".join(missing)


def test_every_module_of_a_large_room_has_a_subject() -> None:
    """A new module takes the name of its subject, or a row of docs/modules.md has it."""
    rooms = re.split(r"^## `([\w/]+)`.*$", (ROOT / "docs/modules.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[
        1:
    ]
    wrong: list[str] = []
    for room, text in zip(rooms[::2], rooms[1::2], strict=True):
        rows = [line.split("|") for line in text.splitlines() if line.startswith("| ") and "`" in line]
        named = [name for row in rows for name in re.findall(r"`([\w*]+)`", row[3])]
        modules = {p.stem for p in (SRC / room).glob("*.py")} - {"__init__"}
        wrong += [f"{room}/{m}.py is in no row" for m in modules if not any(fnmatchcase(m, n) for n in named)]
        wrong += [f"{room} has no {n}" for n in named if not any(fnmatchcase(m, n) for m in modules)]
        wrong += [f"{room} starts at {row[2]}" for row in rows if row[2].strip(" `") not in modules]
    assert len(rooms) == 8 and not wrong, "\n".join(wrong)
