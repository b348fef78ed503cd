"""`make vocabularies`: ids that differ from a file's own are told, and fail; equal ones do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.language.tokenizer import GgufTokenizer
from tests.gguf_files import tokenizer_fields, written
from zoo import vocabularies

TEXTS = ["hello w", " 12 wörlds\n", "日本語"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vocabulary with strings and the ids that its tokenizer gives."""
    monkeypatch.setattr(vocabularies, "NAMES", ("tiny",))
    fields = tokenizer_fields()
    ids = [GgufTokenizer(fields).encode(text, bos=False) for text in TEXTS]
    (tmp_path / "ggml-vocab-tiny.gguf").write_bytes(written({"general.architecture": "llama", **fields}, {}))
    (tmp_path / "ggml-vocab-tiny.gguf.inp").write_bytes("\n__ggml_vocab_test__\n".join(TEXTS).encode("utf-8"))
    (tmp_path / "ggml-vocab-tiny.gguf.out").write_text("\n".join(" ".join(map(str, row)) for row in ids) + "\n")
    return tmp_path


def test_equal_ids_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vocabularies.main([str(folder)]) == 0 and capsys.readouterr().out.split() == ["tiny", "equal"]


def test_ids_that_differ_fail_with_the_string(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "ggml-vocab-tiny.gguf.out"
    out.write_text(out.read_text().replace(" ", " 9", 1))
    assert vocabularies.main([str(folder)]) == 1
    assert "1 differ, such as 'hello w'" in capsys.readouterr().out


def test_names_are_either_read_or_refused() -> None:
    assert not set(vocabularies.NAMES) & set(vocabularies.REFUSED) and vocabularies.PIN.sha256
