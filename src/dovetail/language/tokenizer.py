"""Tokenizers that come with a GGUF file: byte-level BPE and SentencePiece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.gguf.file import Field, shown
from dovetail.language.byte_level import PRE_TOKENIZERS, ByteLevel, byte_of
from dovetail.language.sentencepiece import SentencePiece
from dovetail.language.special_tokens import SpecialTokens

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Types of tokens: those of one type have no text, and those of another stand for themselves in any text."""
ENDS = frozenset(
    ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<EOT>")
)
"""Names of tokens that end a turn, whatever a file says of them."""
_KEEP_SPACE = ("<unk>", "<s>", "<|endoftext|>")
"""Special tokens of Phi-3 that leave the white space after them; all its others take it."""


class Tokenizer(Protocol):
    """Text to tokens and back."""

    tokens: Sequence[str]
    special: Mapping[str, int]
    """Tokens that stand for themselves in text."""
    bos: int | None
    eos: int | None

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """The tokens of a text. With `special`, names of control tokens in the text are those tokens."""
        ...

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for; those of a control token are none."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; bytes that are no character become U+FFFD."""
        ...


class GgufTokenizer:
    """A tokenizer from the fields of a GGUF file."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.tokens: Sequence[str] = _strings(fields, "tokenizer.ggml.tokens")
        kinds = _kinds(self.tokens, fields.get("tokenizer.ggml.token_type", []))
        self.special: Mapping[str, int] = _named(self.tokens, kinds, (_CONTROL, _USER_DEFINED))
        self.bos, self.eos = (_id(fields, which, len(self.tokens)) for which in ("bos", "eos"))
        self._words, self._prefixes = _words(fields, self.tokens)
        adds = fields.get("tokenizer.ggml.add_bos_token", self._words.adds_bos)
        self.adds_bos = adds is True
        self._textless = frozenset(i for i, kind in enumerate(kinds) if kind in (_CONTROL, _UNKNOWN))
        stripping: frozenset[int] = frozenset()
        name = fields.get("general.name")
        if isinstance(name, str) and ("phi-3" in name.lower() or "phi3" in name.lower()):
            stripping = frozenset(i for text, i in self.special.items() if text not in _KEEP_SPACE)
        self._all = SpecialTokens(self.special, stripping)
        self._always = SpecialTokens(_named(self.tokens, kinds, (_USER_DEFINED,)), stripping)

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """The tokens of a text. With `special`, names of control tokens in the text are those tokens."""
        clean = text.encode("utf-8", "replace").decode("utf-8")
        found: list[int] = []
        starts = True
        for part in (self._all if special else self._always).cut(clean):
            found += [part] if isinstance(part, int) else self._words.encode(part, starts=starts)
            starts = isinstance(part, int)
        adds = self.adds_bos if bos is None else bos
        return [self.bos, *found] if adds and self.bos is not None and found[:1] != [self.bos] else found

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for; those of a control token are none."""
        # Matrices may have more rows than there are names.
        has_text = 0 <= token < len(self.tokens) and token not in self._textless
        return self._words.bytes_of(self.tokens[token]) if has_text else b""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; bytes that are no character become U+FFFD."""
        raw = b"".join(map(self.bytes_of, tokens))
        return raw.removeprefix(b" " if self._prefixes else b"").decode("utf-8", "replace")


def ends_of_fields(fields: Mapping[str, Field]) -> frozenset[int]:
    """The tokens that end a text or a turn, as a GGUF file says, or by their names."""
    tokens, kinds = (fields.get(f"tokenizer.ggml.{name}", []) for name in ("tokens", "token_type"))
    if not isinstance(tokens, list) or not isinstance(kinds, list):
        tokens, kinds = [], []
    pairs = zip(tokens, kinds, strict=False)
    named = [i for i, (t, kind) in enumerate(pairs) if kind in (_CONTROL, _USER_DEFINED) and t in ENDS]
    said = [fields.get(f"tokenizer.ggml.{which}_token_id") for which in ("eos", "eot", "eom")]
    return frozenset([*named, *(i for i in said if isinstance(i, int))])


class Stream:
    """The text of tokens as they come: the bytes of a character are held until it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._held = b""

    def add(self, token: int) -> str:
        """The characters that this token completes."""
        self._held += self.tokenizer.bytes_of(token)
        cut = _whole_characters(self._held)
        text, self._held = self._held[:cut].decode("utf-8", "replace"), self._held[cut:]
        return text

    def cut_off(self, token: int) -> int:
        """How many characters what is held becomes, where this token does not go on with it."""
        raw = self.tokenizer.bytes_of(token)
        goes_on = not raw or raw[0] & 0xC0 == 0x80
        return 0 if goes_on else len(self._held.decode("utf-8", "replace"))

    def end(self) -> str:
        """What is left, once no token follows."""
        text, self._held = self._held.decode("utf-8", "replace"), b""
        return text


def _whole_characters(raw: bytes) -> int:
    """How many bytes there are before a character that is not whole yet, and may still become one."""
    for back in range(1, min(3, len(raw)) + 1):
        byte = raw[-back]
        if byte >= 0xC0:
            return len(raw) - back if _may_become_whole(raw[-back:]) else len(raw)
        if byte < 0x80:
            break
    return len(raw)


def _may_become_whole(start: bytes) -> bool:
    """Whether these bytes are the start of a character, and not all of it."""
    needs = 2 if start[0] < 0xE0 else 3 if start[0] < 0xF0 else 4
    # Some leads and some second bytes begin no character at all.
    low, high = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}.get(
        start[0], (0x80, 0xBF)
    )
    is_lead = 0xC2 <= start[0] <= 0xF4
    return is_lead and len(start) < needs and (len(start) < 2 or low <= start[1] <= high)


def _words(fields: Mapping[str, Field], tokens: Sequence[str]) -> tuple[ByteLevel | SentencePiece, bool]:
    """What makes tokens of text, and whether it puts a space before a text."""
    model = fields.get("tokenizer.ggml.model")
    if model == "gpt2":
        merges = _strings(fields, "tokenizer.ggml.merges")
        return ByteLevel(fields.get("tokenizer.ggml.pre", ""), tokens, merges), False
    if model != "llama":
        raise UnsupportedError(
            f"a tokenizer of the kind {shown(str(model))!r}",
            hint="gpt2 (byte-level BPE) and llama (SentencePiece) are read",
        )
    scores = fields.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or not all(isinstance(s, int | float) for s in scores):
        raise LoadError("no list of numbers tokenizer.ggml.scores", hint="fetch the file again")
    prefixes = fields.get("tokenizer.ggml.add_space_prefix", True) is True
    unknown = _id(fields, "unknown", len(tokens))
    return SentencePiece(tokens, cast(list[float], scores), unknown=unknown, prefixes=prefixes), prefixes


def _kinds(tokens: Sequence[str], kinds: Field) -> list[int]:
    listed = kinds if isinstance(kinds, list) else []
    if listed and len(listed) != len(tokens):
        raise LoadError(f"{len(listed):,} types of {len(tokens):,} tokens", hint="fetch the file again")
    return cast(list[int], listed)


def _named(tokens: Sequence[str], kinds: Sequence[int], wanted: Sequence[int]) -> dict[str, int]:
    return {t: i for i, (t, kind) in enumerate(zip(tokens, kinds, strict=False)) if kind in wanted and t}


def _strings(fields: Mapping[str, Field], name: str) -> list[str]:
    found = fields.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(s, str) for s in found):
        raise LoadError(f"no list of strings {name}", hint="the file has no tokenizer; pass tokens in place of text")
    return cast(list[str], found)


def _id(fields: Mapping[str, Field], which: str, count: int) -> int | None:
    found = fields.get(f"tokenizer.ggml.{which}_token_id")
    return found if isinstance(found, int) and 0 <= found < count else None


__all__ = ["ENDS", "PRE_TOKENIZERS", "GgufTokenizer", "Stream", "Tokenizer", "byte_of", "ends_of_fields"]
