"""The shape of the tree: direction of imports, sizes of folders, a complete façade, described options."""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import dovetail
from dovetail import dtypes, errors
from dovetail.ir import dtype
from dovetail.settings import Settings
from tests.sources import FILES, ROOT, SRC, import_nodes

EVERYWHERE = "*"
IMPORTED_BY = {
    "numpy": {EVERYWHERE},
    "ml_dtypes": {"ir"},
    "onnx": {"frontends", "adapters", "bench"},
    "google": {"frontends"},
    "onnxruntime": {"adapters"},
    "llvmlite": {"targets"},
    "safetensors": {"frontends"},
    "tokenizers": {"language"},
    "egglog": {"egraph"},
}
"""Each third-party package and the rooms that import it. An adapter implements an interface of its package."""


def room(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        else:
            assert not node.level and node.module, f"{where(path, node.lineno)} imports relatively"
            yield node.lineno, node.module


@pytest.mark.slow
def test_rooms_import_downwards_only(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True)
    assert verdict == 0, capsys.readouterr().out


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, known: set[str]) -> set[str]:
    """The modules of ours that a file imports."""
    found: set[str] = set()
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & known) or {node.module}
    return (found & known) - {module_name(path)}


def circles(reads: dict[str, set[str]]) -> set[frozenset[str]]:
    """Modules that reach each other, by the sets that are reached from each."""
    # A module whose imports are in no circle is in none: few modules are left to search, or none.
    while ends := {module for module, found in reads.items() if not found}:
        reads = {module: found - ends for module, found in reads.items() if module not in ends}
    reached: dict[str, set[str]] = {}
    for start in reads:
        seen: set[str] = set()
        pending = [start]
        while pending:
            for module in reads[pending.pop()] - seen:
                seen.add(module)
                pending.append(module)
        reached[start] = seen
    return {
        frozenset(other for other in reached[start] if start in reached[other])
        for start in reads
        if start in reached[start]
    }


@pytest.mark.slow
def test_modules_do_not_import_each_other() -> None:
    known = {module_name(path) for path in FILES}
    # A package offers what its own modules define, and is imported before any of them.
    reads = {module_name(p): imported_modules(p, known) for p in FILES if p.name != "__init__.py"}
    assert circles({m: found & reads.keys() for m, found in reads.items()}) == set()
    assert circles({"a": {"b", "d"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {frozenset({"b", "c"})}


@pytest.mark.slow
def test_each_package_is_imported_in_its_room() -> None:
    strangers: list[str] = []
    for path in FILES:
        for line, module in imports(path):
            package = module.split(".")[0]
            if package in sys.stdlib_module_names or package == "dovetail":
                continue
            if not IMPORTED_BY.get(package, set()) & {EVERYWHERE, room(path)}:
                strangers.append(f"{where(path, line)} imports {package}")
    assert not strangers, "\n".join(strangers)


@pytest.mark.slow
def test_torch_is_imported_by_name_in_one_place() -> None:
    by_name = re.compile(r"""import_module\(["']torch|torch_module\(""")
    rooms = {p.relative_to(SRC).parent.as_posix() for p in FILES if by_name.search(p.read_text(encoding="utf-8"))}
    assert rooms == {"bench", "frontends/torch/dynamo", "frontends/torch/reading", "torch"}


def test_the_table_of_packages_has_nothing_left_over() -> None:
    met = {module.split(".")[0] for path in FILES for _, module in imports(path)}
    assert set(IMPORTED_BY) <= met


def test_the_facade_is_complete() -> None:
    tree = ast.parse((SRC / "__init__.py").read_text(encoding="utf-8"))
    within = [inner for n in tree.body if isinstance(n, ast.If) for inner in n.body]
    found = [n for n in within if isinstance(n, ast.ImportFrom)]
    imported = [a.asname or a.name for n in found if (n.module or "").startswith("dovetail") for a in n.names]
    defined = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name[0] != "_"]
    offered = {name for name in imported + defined if name not in dovetail.MODULES and name[0] != "_"}
    offered |= {"__version__", "ops"}
    assert set(dovetail.__all__) == offered
    assert len(dovetail.__all__) == len(offered), "a name is listed twice"
    assert all(hasattr(dovetail, name) for name in dovetail.__all__)


def test_every_error_and_dtype_is_offered() -> None:
    listed = {c.__name__ for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)}
    assert set(errors.__all__) == listed
    assert all(getattr(dtypes, d.name if d is not dtype.bool_ else "bool_") is d for d in dtype.ALL)
    assert len(dtypes.__all__) == len(dtype.ALL) + 1


def test_every_error_stands_in_the_tree_of_the_docstring() -> None:
    drawn = re.findall(r"── (\w+Error)\b|^(DovetailError)$", errors.__doc__ or "", re.MULTILINE)
    assert sorted(first or second for first, second in drawn) == sorted(errors.__all__)


def test_every_setting_is_described() -> None:
    for field in dataclasses.fields(Settings):
        assert len(field.metadata["doc"].split()) >= 5, f"{field.name} is not described"


@pytest.mark.slow
def test_every_setting_is_read() -> None:
    code = "\n".join(p.read_text(encoding="utf-8") for p in FILES if p.name != "settings.py")
    unread = [f.name for f in dataclasses.fields(Settings) if not re.search(rf"\.{f.name}\b", code)]
    assert not unread, f"options that change nothing: {unread}"


@pytest.mark.slow
def test_no_path_of_one_machine() -> None:
    private = re.compile(r"(?<![\w.~])/(home|root|Users|mnt|opt)/\w+")
    texts = [
        p for folder in ("src", "tests", "docs", "examples", "benchmarks", ".ci") for p in (ROOT / folder).rglob("*")
    ]
    texts += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    assert not list(
        matches(
            private,
            [p for p in texts if p.suffix in (".py", ".md", ".txt", ".toml", "") and "node_modules" not in p.parts],
        )
    )


def matches(pattern: re.Pattern[str], paths: list[Path]) -> Iterator[str]:
    for path in paths:
        if path.is_file():
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if pattern.search(line):
                    yield f"{where(path, number)}: {line.strip()}"
