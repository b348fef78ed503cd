"""SentencePiece vocabularies: the best score is joined first, unknown characters are bytes, special tokens cut text."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import DovetailError, LoadError
from dovetail.language.sentencepiece import LONGEST, SentencePiece
from dovetail.language.special_tokens import SpecialTokens
from dovetail.language.tokenizer import GgufTokenizer, Stream

BYTES = [f"<0x{b:02X}>" for b in range(256)]
PIECES = {"▁": -9.0, "a": -8.0, "b": -8.0, "ab": -2.0, "ba": -1.0, "▁a": -3.0, "aba": -4.0, "▁▁": -5.0, "▁ab": -0.5}
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *PIECES, "<tag>"]


def fields(**more: Any) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, *[0.0] * 256, *PIECES.values(), 0.0],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(PIECES), 4],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"tokenizer.ggml.{name}": said for name, said in more.items()},
    }


def pieces(text: str, **more: Any) -> list[str]:
    tokenizer = GgufTokenizer(fields(**more))
    return [TOKENS[i] for i in tokenizer.encode(text, bos=False)]


def test_the_best_score_is_joined_first() -> None:
    # ba has a better score than ab, which then finds no partner.
    assert pieces("aba", add_space_prefix=False) == ["aba"] and pieces("bab", add_space_prefix=False) == ["ba", "b"]
    assert pieces("ab") == ["▁ab"] and pieces("a  a") == ["▁a", "▁", "▁a"]


def test_what_is_unknown_is_bytes_and_comes_back() -> None:
    tokenizer = GgufTokenizer(fields())
    for text in ("aé b", "日本", " ab  a", "\n", "a\x00"):
        ids = tokenizer.encode(text)
        assert ids[0] == 1 and tokenizer.decode(ids) == text
    stream = Stream(tokenizer)
    ids = tokenizer.encode("日", bos=False)
    assert [stream.add(i) for i in ids] == [" ", "", "", "日"]


def test_tokens_of_users_are_found_in_any_text_and_control_tokens_where_asked() -> None:
    assert pieces("a<tag>a") == ["▁a", "<tag>", "▁a"]
    tokenizer = GgufTokenizer(fields())
    assert tokenizer.encode("<s>a</s>", special=True)[-1] == 2 and tokenizer.encode("<s>a", special=True).count(1) == 1
    assert 1 not in tokenizer.encode("<s>a", bos=False)


def test_special_tokens_take_white_space_where_they_say_so() -> None:
    cut = SpecialTokens({"<a>": 1, "<ab>": 2}, frozenset((2,))).cut
    assert list(cut("x<ab> \n y<a> z<")) == ["x", 2, "y", 1, " z<"]


@pytest.mark.slow
def test_long_texts_are_cut_at_spaces() -> None:
    words = SentencePiece(TOKENS, fields()["tokenizer.ggml.scores"], unknown=0, prefixes=False)
    text = " ab" * LONGEST
    assert [TOKENS[i] for i in words.encode(text, starts=True)] == ["▁ab"] * LONGEST


@pytest.mark.parametrize("more", [{"scores": [1.0]}, {"scores": "x"}, {"scores": [float("nan")] * len(TOKENS)}])
def test_scores_that_are_not_there_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(DovetailError) as caught:
        GgufTokenizer(fields(**more))
    assert type(caught.value) is LoadError and caught.value.hint


def test_bytes_that_begin_no_character_do_not_hold_the_text_back() -> None:
    tokenizer = GgufTokenizer(fields())
    stream = Stream(tokenizer)
    for lead in (b"\xff", b"\xc0", b"\xf8", b"\xe0\x80", b"\xed\xa0", b"\xf4\x90"):
        shown = "".join(stream.add(3 + byte) for byte in lead)
        assert shown and set(shown) == {"\ufffd"}, lead
