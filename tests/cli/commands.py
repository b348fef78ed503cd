"""Running the command line inside a test, and the small models that the tests ask about."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from dovetail.cli.main import main
from tests.cli.schemas import problems, schema_of

SMALL = {
    "bert": "bert:layers=2,hidden=32,heads=4,inner=64,vocabulary=50,positions=16,batch=1,seq=8",
    "llama": "llama:layers=2,hidden=64,heads=4,kv_heads=2,inner=96,vocabulary=100,batch=1,seq=8",
    "llama_step": "llama_step:layers=2,hidden=64,heads=4,kv_heads=2,inner=96,vocabulary=100,batch=1",
    "resnet": "resnet:blocks=1,1,width=8,classes=10,batch=1,image=32",
    "unet": "unet:channels=8,groups=4,batch=1,image=8",
}

LAYER = """graph layer(x: f32[rows, 4]) {
  param w: f32[4, 3]
  param b: f32[3]
  %0 = matmul(x, w) : f32[rows, 3]  @text "the product"
  %1 = add(%0, b) : f32[rows, 3]  @text "the sum"
  %2 = relu(%1) : f32[rows, 3]
  return y = %2
}
"""
"""A layer that fuses to one kernel."""

WRONG_BIAS = LAYER.replace("param b: f32[3]", "param b: f32[2, 3]").replace("rows", "2")
"""The same with a bias of one row for each row, which no epilogue takes."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one command line gave."""

    code: int
    out: str
    err: str
    command: str = ""

    @property
    def data(self) -> Any:
        """The JSON that was printed, checked by the schema of the command."""
        data = json.loads(self.out)
        if self.command:
            assert not (wrong := list(problems(data, schema_of(self.command)))), wrong[:5]
        return data


def without_progress(err: str) -> str:
    """What a process said on stderr, less the phases that took more than a second on a slow machine."""
    return re.sub(r"^dovetail: [\w ]+ took [^\n]+\n", "", err, flags=re.MULTILINE)


def cut_like(said: str, shown: str) -> str:
    """What was said, or as many lines of it as a page shows that ends it with a line of three dots."""
    if not shown.endswith("…\n"):
        return said
    return "".join([*said.splitlines(keepends=True)[: shown.count("\n") - 1], "…\n"])


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs command lines in this process."""

    capture: pytest.CaptureFixture[str]

    def __call__(self, *argv: str) -> Said:
        code = main(argv)
        shown = self.capture.readouterr()
        is_json = "--json" in argv and not {"--assume", "--mesh"} & {*argv}
        return Said(code, shown.out, shown.err, argv[0] if is_json else "")

    def fails(self, code: int, *argv: str) -> str:
        """What is said of a command line that fails: to stderr only, with a hint and without a traceback."""
        said = self(*argv)
        assert said.code == code, said
        assert not said.out
        assert said.err.startswith("dovetail: ") and "\n  hint: " in said.err and "Traceback" not in said.err
        return said.err
