"""The page's JavaScript under node's own test runner, over a source by hand and over one of a real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.models import LlamaShape, llama
from dovetail.report.html.page import SCRIPTS
from dovetail.runtime.page import write_report
from tests.page.node import HERE, ROOT, find_node, unit_tests


def write_source(path: Path) -> None:
    """What the page of a small Llama shows, in JSON."""
    shape = LlamaShape(layers=2, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=100)
    text = write_report(llama(shape, batch=1, seq=8), path.with_suffix(".html"), target="cpu").read_text("utf-8")
    start = text.index('id="source">') + len('id="source">')
    path.write_text(text[start : text.index("</script>", start)], encoding="utf-8")


@pytest.mark.exhaustive
def test_unit_tests_of_the_scripts(tmp_path: Path) -> None:
    node = find_node()
    if node is None:
        pytest.skip("there is no node: make page brings one")
    path = tmp_path / "source.json"
    write_source(path)
    done = unit_tests(node, path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_script_of_the_folder_is_part_of_the_page() -> None:
    folder = ROOT / "src" / "dovetail" / "report" / "html"
    assert {p.name for p in folder.glob("*.js")} == set(SCRIPTS)


def test_versions_are_pinned() -> None:
    wanted = json.loads((HERE / "package.json").read_text(encoding="utf-8"))["devDependencies"]
    locked = json.loads((HERE / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
