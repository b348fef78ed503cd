"""Tokenizers from GGUF fields: merges, control tokens, and characters that come in pieces."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import DovetailError, LoadError, UnsupportedError
from dovetail.language.tokenizer import PRE_TOKENIZERS, GgufTokenizer, Stream, byte_of
from tests.gguf_files import TOKENS, tokenizer_fields

TEXTS = ["hello world", " 12 wörlds\n\n", "日本語 🙂", "a\tb  c", "don't STOP", "\x00\x7f", "e\u0301"]


def test_every_byte_has_a_character_of_its_own() -> None:
    assert sorted(byte_of().values()) == [bytes([b]) for b in range(256)]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(text: str, pre: str) -> None:
    tokenizer = GgufTokenizer(tokenizer_fields(pre))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    stream = Stream(tokenizer)
    pieces = [*map(stream.add, ids), stream.end()]
    assert "".join(pieces) == text and not any("\ufffd" in piece for piece in pieces)


def test_merges_make_words() -> None:
    tokenizer = GgufTokenizer(tokenizer_fields())
    assert [TOKENS[i] for i in tokenizer.encode("hello w")] == ["hello", "Ġw"]


def test_control_tokens_are_read_only_where_asked_and_have_no_text() -> None:
    tokenizer = GgufTokenizer(tokenizer_fields())
    plain, special = tokenizer.encode("<|end|>"), tokenizer.encode("<|end|>", special=True)
    assert special == [TOKENS.index("<|end|>")] and len(plain) == 7
    assert tokenizer.decode(special) == "" and tokenizer.decode(plain) == "<|end|>"


def test_bytes_that_are_no_character_do_not_hold_the_text_back() -> None:
    tokenizer = GgufTokenizer(tokenizer_fields())
    at = {raw: TOKENS.index(unit) for unit, raw in byte_of().items()}
    stream = Stream(tokenizer)
    assert stream.add(at[b"\xe6"]) == "" and stream.add(at[b"\x97"]) == "" and stream.add(at[b"\xa5"]) == "日"
    assert stream.add(at[b"\xf0"]) == "" and stream.end() == "\ufffd"
    assert stream.add(at[b"\x80"]) == "\ufffd" and stream.add(at[b"a"]) == "a"


BROKEN: dict[str, dict[str, Any]] = {
    "another kind": {"tokenizer.ggml.model": "bert"},
    "another pre-tokenizer": {"tokenizer.ggml.pre": "default"},
    "no pre-tokenizer": {"tokenizer.ggml.pre": 3},
    "no tokens": {"tokenizer.ggml.tokens": []},
    "tokens that are numbers": {"tokenizer.ggml.tokens": [1, 2]},
    "types of other tokens": {"tokenizer.ggml.token_type": [1, 1]},
    "a merge without a partner": {"tokenizer.ggml.merges": ["he"]},
    "a merge of strangers": {"tokenizer.ggml.merges": ["zz yy"]},
    "a merge into nothing": {"tokenizer.ggml.merges": ["a b"]},
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_or_unknown_is_refused(case: str) -> None:
    with pytest.raises(DovetailError) as caught:
        GgufTokenizer({**tokenizer_fields(), **BROKEN[case]})
    assert isinstance(caught.value, LoadError | UnsupportedError) and caught.value.hint
