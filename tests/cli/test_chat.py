"""`dovetail chat`: a question is put through the file's own template; a file without one is told so."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import language_options
from dovetail.cli.main import main
from dovetail.errors import UnsupportedError
from dovetail.language import LanguageModel
from dovetail.language.generation import Piece
from dovetail.sanitize import visible
from tests.gguf_files import TOKENS, decoder, tokenizer_fields, written

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }} {{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>{% endif %}"
)


def model_at(folder: Path, **fields: str) -> Path:
    found = folder / "m.gguf"
    sizes, tensors = decoder("llama", "q8_0", vocabulary=len(TOKENS), layers=1)
    found.write_bytes(written({**sizes, **tokenizer_fields(), **fields}, tensors))
    return found


@pytest.mark.exhaustive
def test_questions_go_through_the_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jinja2")
    path = model_at(tmp_path, **{"tokenizer.chat_template": TEMPLATE})
    model = LanguageModel(path)
    history = [{"role": "system", "content": "be"}, {"role": "user", "content": "hello"}]
    prompt = model.chat_prompt(history)
    assert prompt == "<|start|>system be<|end|><|start|>user hello<|end|><|start|>"
    ids = model.tokenizer.encode(prompt, special=True)
    assert ids.count(TOKENS.index("<|start|>")) == 3 and ids.count(TOKENS.index("<|end|>")) == 2
    answer = "".join(model.generate(ids, max_tokens=5))
    shown = "\n".join(map(visible, answer.split("\n")))
    assert main(["chat", str(path), "hello", "--system", "be", "--max-tokens", "5"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == shown.rstrip("\n") and answer
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nagain\n"))
    assert main(["chat", str(path), "--system", "be", "--max-tokens", "5"]) == 0
    both = capsys.readouterr()
    assert both.out.startswith(shown) and len(both.out) > len(shown) + 1 and "tokens a second" in both.err


@pytest.mark.slow
def test_tokens_a_second_are_told_without_what_compiling_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    ready: list[bool] = []

    class Asked(LanguageModel):
        def pieces(self, *given: Any, **more: Any) -> Iterator[Piece]:
            ready.append("step" in self.programs._compiled)  # pyright: ignore[reportPrivateUsage]
            return super().pieces(*given, **more)

    monkeypatch.setattr(language_options, "LanguageModel", Asked)
    path = model_at(tmp_path, **{"tokenizer.chat_template": TEMPLATE})
    assert main(["chat", str(path), "hello", "--max-tokens", "2"]) == 0 and ready == [True]


@pytest.mark.slow
def test_a_file_without_a_template_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(model_at(tmp_path)), "hello"]) == UnsupportedError.exit_code
    assert "chat template" in capsys.readouterr().err
