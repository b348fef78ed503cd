"""The commands that the README shows print what it says they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.cli.commands import Shell, cut_like
from tests.golden import Golden

README = Path(__file__).resolve().parents[2] / "README.md"
SHOWN = re.compile(r"^```console\n\$ dovetail ([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_commands_print_what_the_readme_shows(shell: Shell, golden: Golden) -> None:
    def answered(shown: re.Match[str]) -> str:
        said = shell(*shlex.split(shown[1]))
        assert said.code == 0, said.err
        return f"```console\n$ dovetail {shown[1]}\n{cut_like(said.out, shown[2])}```"

    text = README.read_text(encoding="utf-8")
    assert SHOWN.search(text), "the README shows no command"
    golden.file("README.md", SHOWN.sub(answered, text))
