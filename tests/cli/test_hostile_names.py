"""Names of a model cannot give a terminal orders, whatever is printed of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.cli import explain, why
from dovetail.report.paint import Look
from tests.cli.commands import Shell

EVIL = "\x1b]0;owned\x07\x1b[2J\u202e<script>'\"\r\n" + "long" * 500
"""A title of a window, an empty screen, text from right to left, markup, quotes, line breaks, and much of it."""


@pytest.fixture
def evil(tmp_path: Path) -> str:
    """A graph whose every name and origin is hostile."""
    spelled = "".join(c if c.isprintable() and c not in '"\\' else f"\\u{{{ord(c):x}}}" for c in EVIL)
    text = f'''graph "{spelled}"("{spelled}x": f32[2, 4]) {{
  param "{spelled}w": f32[4, 3]
  param "{spelled}b": f32[2, 3]
  %0 = matmul("{spelled}x", "{spelled}w") : f32[2, 3]  @text "{spelled} 0"
  %1 = add(%0, "{spelled}b") : f32[2, 3]  @text "{spelled} 1"
  %2 = relu(%1) : f32[2, 3]  @text "{spelled} 2"
  return "{spelled}y" = %2
}}
'''
    path = tmp_path / "evil.txt"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "command",
    [
        ["explain"],
        ["explain", "--all", "--measure", "--runs", "1"],
        ["explain", "--json"],
        ["explain", "--require", "linear"],
        ["why", "%0"],
        ["why", "%0", "--json"],
        ["why", "nothing of that name"],
        ["why", EVIL],
        ["plan"],
        ["show", "--stage", "mir"],
        ["show", "--stage", "lir"],
        ["show", "--stage", "egglog"],
        ["profile", "--runs", "1"],
        ["run"],
        ["run", "--random", "0"],
    ],
    ids=" ".join,
)
def test_nothing_but_printable_text_comes_out(command: list[str], shell: Shell, evil: str) -> None:
    said = shell(command[0], evil, *command[1:])
    assert said.out or said.err
    for text in (said.out, said.err):
        assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.slow
@pytest.mark.parametrize("command", [["explain"], ["why", "%2"]], ids=" ".join)
def test_on_a_terminal_the_only_orders_are_colours(
    command: list[str], shell: Shell, evil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = shell(command[0], evil, *command[1:]).out

    def look(stream: object) -> Look:
        return Look(10_000, colour=True)

    monkeypatch.setattr(explain, "look_of", look)
    monkeypatch.setattr(why, "look_of", look)
    painted = shell(command[0], evil, *command[1:]).out
    assert painted != plain
    for code in ("1", "2", "32", "33", "36", "0", "1;31"):
        painted = painted.replace(f"\x1b[{code}m", "")
    assert painted == plain
