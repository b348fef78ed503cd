"""Tokenizers of folders: the ids of the tokenizers package, texts that come back, and what files say of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import LoadError
from dovetail.language.byte_level import byte_of, package
from dovetail.language.checkpoint_tokenizer import CheckpointTokenizer, ends_of_folder, template_of_folder

TEXTS = ["hello world", " 12 wörlds\n\n", "日本語 🙂", "a\tb  c", "don't <|end|> STOP", ""]
UNITS = list(byte_of())
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w")]
WORDS = [*UNITS, *("".join(pair) for pair in MERGES)]
CONTROL = {"<|start|>": len(WORDS), "<|end|>": len(WORDS) + 1}


def byte_level() -> dict[str, Any]:
    """A byte-level tokenizer of five merges and two control tokens."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    added = [
        {"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        | {"special": True}
        for name, i in CONTROL.items()
    ]
    model = {"type": "BPE", "vocab": vocabulary, "merges": [" ".join(pair) for pair in MERGES]}
    return {"version": "1.0", "added_tokens": added, "pre_tokenizer": level, "decoder": level, "model": model}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    said = {"bos_token": "<|start|>", "eos_token": {"content": "<|end|>"}, "chat_template": "{{ messages }}"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level()), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_package_and_texts_come_back(text: str, folder: Path) -> None:
    tokenizer = CheckpointTokenizer(folder)
    peer = package().Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode(text, special=True) == peer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens_are_read_only_where_asked_and_have_no_text(folder: Path) -> None:
    tokenizer = CheckpointTokenizer(folder)
    special = tokenizer.encode("<|end|>", special=True)
    assert special == [CONTROL["<|end|>"]] and tokenizer.decode(special) == ""
    assert CONTROL["<|end|>"] not in tokenizer.encode("<|end|>") and tokenizer.special == CONTROL
    assert (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) == (CONTROL["<|start|>"], CONTROL["<|end|>"], False)
    assert tokenizer.encode("he", bos=True) == [CONTROL["<|start|>"], WORDS.index("he")]


def test_ends_and_templates_are_those_of_all_files(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"eos_token_id": [3, -1, "x"]}), encoding="utf-8")
    assert ends_of_folder(folder) == {3, CONTROL["<|end|>"]}
    assert template_of_folder(folder) == "{{ messages }}"
    (folder / "chat_template.jinja").write_text("own", encoding="utf-8")
    assert template_of_folder(folder) == "own"


@pytest.mark.parametrize("said", ["", "{}", "[]", '{"model": {"type": "BPE"}}', '{"version": "1.0", "model": 3}'])
def test_files_that_are_no_tokenizers_are_refused(said: str, folder: Path) -> None:
    (folder / "tokenizer.json").write_text(said, encoding="utf-8")
    with pytest.raises(LoadError):
        CheckpointTokenizer(folder)
