"""The distribution is `dovetail-ml`: on PyPI the name of the import package is another project's."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.targets.cuda.library.cublaslt import INSTALL
from dovetail.version import DISTRIBUTION
from tests.cli.commands import Shell

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("src", "docs", "examples", "tests", "benchmarks", "fuzz", "zoo", ".github", ".ci")
FILES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "pyproject.toml", "mkdocs.yml")
KINDS = {".md", ".py", ".toml", ".yml", ".yaml", ".js", ".html", ".txt", ".sh", ""}

OTHERS = re.compile(
    r"\bdovetail\[[a-z]|pip3? install[^\n`]*?(?<![\w./-])dovetail(?![\w-])|pypi\.org/(?:p|project)/dovetail(?![\w-])"
)
"""What would install, or name, the other project."""


def texts() -> Iterator[tuple[Path, str]]:
    paths = [ROOT / name for name in FILES]
    for place in PLACES:
        paths += [p for p in sorted((ROOT / place).rglob("*")) if p.suffix in KINDS and "data" not in p.parts]
    for path in paths:
        if path.is_file() and path != Path(__file__).resolve() and "node_modules" not in path.parts:
            yield path, path.read_text(encoding="utf-8", errors="replace")


@pytest.mark.slow
def test_the_tree_never_installs_the_other_project() -> None:
    found = [f"{path.relative_to(ROOT)}: {m[0]}" for path, text in texts() for m in OTHERS.finditer(text)]
    assert not found, "\n".join(found)


def test_the_pattern_tells_the_names_apart() -> None:
    for wrong in ("pip install 'dovetail[torch]'", "pip install dovetail", "pip install -U dovetail", "dovetail[xla]"):
        assert OTHERS.search(wrong), wrong
    for right in ("pip install 'dovetail-ml[torch]'", "pip install dovetail-ml", "pip install .", "dovetail explain"):
        assert not OTHERS.search(right), right


def test_the_distribution_has_the_name_that_messages_print() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    assert project["scripts"].keys() == {"dovetail"}


@pytest.mark.slow
def test_what_runs_prints_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(capsys)
    said = [shell("doctor").out, shell("doctor", "--json").out, INSTALL]
    assert not [m[0] for text in said for m in OTHERS.finditer(text)]
    assert f"'{DISTRIBUTION}[" in INSTALL


@pytest.mark.slow
def test_extras_that_the_tree_names_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = [(path, name) for path, text in texts() for name in re.findall(rf"{DISTRIBUTION}\[([a-z,-]+)\]", text)]
    missing = [f"{path.relative_to(ROOT)}: {name}" for path, name in named if name not in {*extras, "rare"}]
    assert named and not missing, "\n".join(missing)
