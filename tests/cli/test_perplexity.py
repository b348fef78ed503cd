"""`dovetail perplexity`: what a model's own logits say, whatever the windows, and bad files and options as errors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dovetail.language import LanguageModel
from tests.cli.commands import Shell
from tests.cli.test_generate import path
from tests.gguf_files import TOKENS, decoder, tokenizer_fields, written

__all__ = ["path"]
TEXT = "hello world, hello words: the world says hello"


@pytest.fixture
def text(tmp_path: Path) -> str:
    found = tmp_path / "text.txt"
    found.write_text(TEXT, encoding="utf-8")
    return str(found)


def wanted(path: Path, window: int) -> tuple[float, int]:
    """The same by one session for each window, token by token, in float64."""
    model = LanguageModel(path)
    tokens = model.tokenizer.encode(TEXT)
    found: list[float] = []
    for start in range(0, len(tokens), window):
        session = model.session()
        for now, after in zip(tokens[start : start + window], tokens[start + 1 : start + window], strict=False):
            logits = np.asarray(session.extend([now]), np.float64).reshape(-1)
            found.append(float(logits[after] - logits.max() - np.log(np.exp(logits - logits.max()).sum())))
    return math.exp(-float(np.mean(found))), len(found)


@pytest.mark.slow
@pytest.mark.parametrize("window", [4, 512])
def test_perplexity_is_that_of_the_logits(window: int, path: Path, text: str, shell: Shell) -> None:
    found = shell("perplexity", str(path), text, "--window", str(window), "--json").data
    perplexity, tokens = wanted(path, window)
    assert found["tokens"] == tokens and found["perplexity"] == pytest.approx(perplexity, rel=1e-5)


@pytest.mark.slow
def test_the_text_says_how_many_tokens(path: Path, text: str, shell: Shell) -> None:
    assert "over 2 tokens" in shell("perplexity", str(path), text, "--max-tokens", "3").out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{path}", "absent.txt"], "cannot be read as text"),
        (["{path}", "{path}"], "cannot be read as text"),
        (["{path}", "{text}", "--window", "1"], "--window"),
        (["{path}", "{text}", "--max-tokens", "1"], "1 tokens"),
        (["absent.gguf", "{text}"], "cannot be read"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], said: str, path: Path, text: str, shell: Shell) -> None:
    found = shell("perplexity", *[a.replace("{path}", str(path)).replace("{text}", text) for a in arguments])
    assert found.code == 1 and said in found.err and "hint:" in found.err and not found.out


@pytest.mark.slow
def test_a_model_with_one_position_predicts_nothing(text: str, tmp_path: Path, shell: Shell) -> None:
    fields, tensors = decoder("llama", "q8_0", vocabulary=len(TOKENS), layers=1, fields={"llama.context_length": 1})
    path = tmp_path / "short.gguf"
    path.write_bytes(written({**fields, **tokenizer_fields()}, tensors))
    assert "one position" in shell.fails(1, "perplexity", str(path), text)
