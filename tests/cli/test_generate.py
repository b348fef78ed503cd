"""`dovetail generate`: text of a tiny model, and bad files and options as errors with a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.cli.main import main
from dovetail.language import LanguageModel
from dovetail.sanitize import visible
from tests.gguf_files import TOKENS, decoder, tokenizer_fields, written


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("generate") / "m.gguf"
    fields, tensors = decoder("llama", "q8_0", vocabulary=len(TOKENS), layers=1)
    found.write_bytes(written({**fields, **tokenizer_fields()}, tensors))
    return found


@pytest.mark.heavy
def test_text_goes_to_stdout(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(path), "hello w", "--max-tokens", "6", "--times"]) == 0
    shown = capsys.readouterr().out
    wanted = "".join(LanguageModel(path).generate("hello w", max_tokens=6))
    assert shown.rstrip("\n") == "\n".join(map(visible, wanted.split("\n"))).rstrip("\n") and wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent.gguf", "hello"], "cannot be read"),
        (["{path}", ""], "empty prompt"),
        (["{path}", "hello", "--temperature", "-1"], "temperature"),
        (["{path}", "hello", "--max-tokens", "-1"], "--max-tokens"),
        (["{path}", "hello " * 600], "positions"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], said: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *[a.replace("{path}", str(path)) for a in arguments]]) == 1
    shown = capsys.readouterr()
    assert said in shown.err and "hint:" in shown.err and not shown.out
