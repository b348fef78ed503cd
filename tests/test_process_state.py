"""docs/process-state.md names every piece of state that the process holds, and nothing that is gone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from tests.sources import FILES, ROOT, SRC, parsed

PAGE = ROOT / "docs" / "process-state.md"

CONTAINERS = {
    "dict", "list", "set", "defaultdict", "deque", "OrderedDict", "Counter",
    "WeakKeyDictionary", "WeakSet", "WeakValueDictionary",
}  # fmt: skip
SYNCHRONISED = {"ContextVar", "Event", "Lock", "RLock", "Semaphore", "local"}
CACHES = {"cache", "lru_cache"}


def last_name(node: ast.expr) -> str:
    """`f`, for `f`, `m.f`, `f[...]` and a call of them."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def starts_empty(node: ast.expr) -> bool:
    """Whether an expression makes a container to be filled later, or a lock. Full ones are tables of constants."""
    if isinstance(node, ast.Dict):
        return not node.keys
    if isinstance(node, ast.List | ast.Set):
        return not node.elts
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node)
    return name in SYNCHRONISED or (name in CONTAINERS and not node.args)


def assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is not None:
            yield from ((last_name(target), value) for target in targets)


def holders(trees: list[ast.Module]) -> set[str]:
    """Classes whose instances start with something to be filled."""
    found: set[str] = set()
    for tree in trees:
        for cls in (n for n in tree.body if isinstance(n, ast.ClassDef)):
            made = [n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
            if any(starts_empty(value) for function in made for _, value in assignments(function.body)):
                found.add(cls.name)
    return found


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts)


def state_in(tree: ast.Module, holding: set[str]) -> set[str]:
    """The names of a module that hold something between calls."""
    found: set[str] = set()
    for name, value in assignments(tree.body):
        if starts_empty(value) or (isinstance(value, ast.Call) and last_name(value) in holding):
            found.add(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            found |= set(node.names)
        elif isinstance(node, ast.FunctionDef) and {last_name(d) for d in node.decorator_list} & CACHES:
            found.add(node.name)
    return found


def all_state() -> set[str]:
    trees = {module_name(p): parsed(p) for p in FILES}
    holding = holders(list(trees.values()))
    return {f"{module}.{name}" for module, tree in trees.items() for name in state_in(tree, holding)}


def listed() -> list[str]:
    """The names in the first cell of each row of the page's tables; a star stands for any part of a name."""
    rows = re.findall(r"^\| (`[^|]*`) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([\w.*]+)`", row)]


def test_the_page_lists_all_state_and_no_other() -> None:
    names, state = set(listed()), all_state()
    assert len(state) > 30
    missing = {name for name in state if not any(fnmatchcase(name, pattern) for pattern in names)}
    gone = {p for p in names if not any(fnmatchcase(name, p) for name in state)} - threads() - PER_OBJECT
    assert not missing, f"docs/process-state.md does not name {sorted(missing)}"
    assert not gone, f"docs/process-state.md names what is not there: {sorted(gone)}"


PER_OBJECT = {"declare.fused.FusedOp"}
"""Rows about objects that live as long as the process because modules hold them."""


def threads() -> set[str]:
    """Modules that start threads."""
    return {module_name(p) for p in FILES if "Thread(" in p.read_text(encoding="utf-8")}


def test_the_page_lists_every_module_that_starts_threads() -> None:
    assert threads() <= set(listed()), sorted(threads() - set(listed()))


def test_state_is_found() -> None:
    tree = ast.parse(
        "import threading\nfrom functools import cache\nTABLE = {1: 2}\nseen: dict[int, int] = {}\n"
        "lock = threading.Lock()\nkeeper = Keeper()\ncount = 0\n"
        "class Keeper:\n    def __init__(self) -> None:\n        self.kept = []\n"
        "@cache\ndef slow() -> int: ...\n"
        "def more() -> None:\n    global count\n    count += 1\n"
    )
    assert state_in(tree, holders([tree])) == {"seen", "lock", "keeper", "slow", "count"}
