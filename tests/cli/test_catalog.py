"""`dovetail catalog`, and the pages in docs/catalogue that are generated from the same declarations."""

from __future__ import annotations

import pytest

from dovetail import library
from dovetail.cli.catalog import ENTRIES
from dovetail.derive.catalogue import index, page
from dovetail.runtime.keepers import keepers
from dovetail.targets.cpu.target import TARGET as CPU
from dovetail.targets.cuda.target import TARGET as CUDA
from tests.cli.commands import Shell
from tests.golden import Golden


@pytest.mark.slow
def test_the_pages_in_docs_are_what_the_declarations_say(golden: Golden) -> None:
    kept = {name: keepers(name) for name in ENTRIES}
    pages = {f"{name}.md": page(entry, kept[name]) for name, entry in ENTRIES.items()}
    golden.folder("docs/catalogue", {"index.md": index(list(ENTRIES.values()), kept), **pages})


@pytest.mark.slow
def test_the_catalogue_says_which_targets_keep_each_op(shell: Shell) -> None:
    listed = {op["name"]: op["kept_by"] for op in shell("catalog", "--json").data["ops"]}
    for op in library.ALL:
        assert listed[op.name] == [t.name for t in (CPU, CUDA) if t.claims(()).has(op.name)]
    assert "One kernel on: cpu, cuda." in shell("catalog", "attention").out
    assert "One kernel on: no target" in shell("catalog", "conv_batch_norm").out


def test_everything_declared_is_listed(shell: Shell) -> None:
    names = {op.name for op in library.ALL} | {group.name for group in library.GROUPS}
    said = shell("catalog")
    assert said.code == 0 and not said.err
    assert {line.split()[0] for line in said.out.splitlines()} == names
    listed = shell("catalog", "--json").data
    assert listed["schema_version"] == 1 and {op["name"] for op in listed["ops"]} == names


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_every_page_is_shown(name: str, shell: Shell) -> None:
    said = shell("catalog", name)
    assert said.code == 0
    assert said.out.startswith(f"# `{name}`\n\n{ENTRIES[name].doc.splitlines()[0]}")
    assert all(f"- `{guard.name}`. Otherwise: " in said.out for guard in ENTRIES[name].guards)


def test_one_op_as_data(shell: Shell) -> None:
    linear = shell("catalog", "linear", "--json").data
    assert linear["shapes"] == "x[*, m, k] w[k, n] b[n]" and linear["stage"] == "fuse"
    assert "bias_is_a_vector" in {guard["name"] for guard in linear["guards"]}


def test_an_unknown_op_names_the_nearest(shell: Shell) -> None:
    assert "did you mean swiglu?" in shell.fails(1, "catalog", "swiglue")
    assert "dovetail catalog lists them" in shell.fails(1, "catalog", "zzzzzz")
