"""What is written for egglog runs there as it is, checks itself, and no name can break it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.egraph.egglog.text import program_text
from dovetail.egraph.egglog.words import text
from dovetail.ir.leaf import input, param
from tests.egraph.engines import needs_egglog, run
from tests.egraph.models import EVERYTHING, models

HOSTILE = ['"', "\\", "a\nb", ") (panic)", "; (", "\0", "ü 漢字 🦀", "\u202e", "", "(pop)\r\n", "x" * 500]


def layer(names: list[str]) -> Graph:
    x, w, b = input(f"x{names[0]}", f32[2, 4]), param(f"w{names[1]}", f32[4, 3]), param(f"b{names[2]}", f32[3])
    return Graph.of({f"y{names[3]}": ops.relu(x @ w + b)})


@needs_egglog
@pytest.mark.parametrize("name", ["bert", "llama step", "unet"])
def test_the_program_of_a_model_runs_and_its_checks_hold(name: str, tmp_path: Path) -> None:
    program = program_text(models()[name], EVERYTHING)
    assert program.count("(check ") >= 10
    run(program, tmp_path)


@needs_egglog
def test_a_check_that_does_not_hold_is_told(tmp_path: Path) -> None:
    bindings: Any = pytest.importorskip("egglog.bindings")
    program = program_text(layer([""] * 4), EVERYTHING)
    lines = program.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("(check "))
    lines[at] = lines[at].replace("(check (= (N ", "(check (= (N 1")
    with pytest.raises(bindings.EggSmolError):
        run("\n".join(lines), tmp_path)


@needs_egglog
@pytest.mark.parametrize("at", range(0, len(HOSTILE), 4))
def test_names_cannot_break_the_program(at: int, tmp_path: Path) -> None:
    names = [HOSTILE[(at + i) % len(HOSTILE)] for i in range(4)]
    program = program_text(layer(names), EVERYTHING)
    assert program.isascii() and "\0" not in program
    plain = program_text(layer([""] * 4), EVERYTHING)
    assert _commands(program) == _commands(plain), "a name has reached a command"
    run(program, tmp_path)


def _commands(program: str) -> list[str]:
    return [line for line in program.split("\n") if not line.startswith(";")]


@pytest.mark.parametrize("name", HOSTILE)
def test_text_is_one_line_of_plain_characters_in_quotes(name: str) -> None:
    found = text(name)
    assert found.isascii() and found.isprintable() and found[0] == found[-1] == '"' and '"' not in found[1:-1]
    assert len(found) < 1000
