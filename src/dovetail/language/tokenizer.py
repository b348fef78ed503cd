"""Tokenizers that come with a GGUF file: byte-level BPE with the pre-tokenizers that we know.

An unknown pre-tokenizer is refused: another one would cut text elsewhere, and the model would read other tokens than it
was trained with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.gguf.file import Field, shown

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_DIGITS = r"\p{N}"

PRE_TOKENIZERS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "llama-bpe": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "smollm": (_DIGITS, _GPT2),
    "starcoder": (_DIGITS, _GPT2),
    "refact": (_DIGITS, _GPT2),
    "command-r": (_DIGITS, _GPT2),
}
"""Expressions that cut text one after the other, by the name in files."""
_WHOLE_WORDS = ("llama-bpe",)
"""Pre-tokenizers whose words are tokens where the vocabulary has them, whatever the merges say."""
_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens that stand for themselves in text."""


class Encoded(Protocol):
    ids: list[int]


class Package(Protocol):
    """A tokenizer of the tokenizers package, as far as it is used."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Encoded: ...


class Tokenizer:
    """Text to tokens and back."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.tokens = _strings(fields, "tokenizer.ggml.tokens")
        kinds = fields.get("tokenizer.ggml.token_type", [])
        self.special = _special(self.tokens, kinds)
        self.bos = _id(fields, "bos", len(self.tokens))
        self.eos = _id(fields, "eos", len(self.tokens))
        self.adds_bos = fields.get("tokenizer.ggml.add_bos_token") is True
        self._with_special = _built(fields, self.tokens, self.special)
        self._plain = _built(fields, self.tokens, {})
        self._unit = byte_of()

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """The tokens of a text. With `special`, names of control tokens in the text are those tokens."""
        package = self._with_special if special else self._plain
        found = package.encode(text.encode("utf-8", "replace").decode("utf-8"), add_special_tokens=False).ids
        adds = self.adds_bos if bos is None else bos
        return [self.bos, *found] if adds and self.bos is not None else found

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for; those of a control token are none."""
        if token in self._control:
            return b""
        unit = self._unit
        return b"".join([unit.get(c, c.encode("utf-8", "replace")) for c in self.tokens[token]])

    @property
    def _control(self) -> frozenset[int]:
        return frozenset(self.special.values())

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; bytes that are no character become U+FFFD."""
        return b"".join(map(self.bytes_of, tokens)).decode("utf-8", "replace")


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

    def end(self) -> str:
        """What is left, once no token follows."""
        text, self._held = self._held.decode("utf-8", "replace"), b""
        return text


def _whole_characters(raw: bytes) -> int:
    """How many bytes there are before a character that is not whole yet."""
    for back in range(1, min(4, len(raw) + 1)):
        byte = raw[-back]
        if byte >= 0xC0:
            needs = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(raw) - back if needs > back else len(raw)
        if byte < 0x80:
            break
    return len(raw)


@lru_cache(maxsize=1)
def byte_of() -> Mapping[str, bytes]:
    """The byte that each character of a byte-level vocabulary stands for."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in kept]
    return {chr(b): bytes([b]) for b in kept} | {chr(256 + i): bytes([b]) for i, b in enumerate(others)}


def _built(fields: Mapping[str, Field], tokens: list[str], special: Mapping[str, int]) -> Package:
    model, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "")
    if model != "gpt2":
        raise UnsupportedError(f"a tokenizer of the kind {shown(str(model))!r}", hint="byte-level BPE (gpt2) is read")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"the pre-tokenizer {shown(str(pre))!r}",
            hint=f"{', '.join(PRE_TOKENIZERS)} are known; another one would give other tokens",
        )
    try:
        import tokenizers  # an optional package, for text in place of tokens
    except ImportError as error:
        raise UnsupportedError(
            "text needs the tokenizers package", hint="pip install 'dovetail[language]', or pass tokens"
        ) from error
    package = cast(Any, tokenizers)
    pairs = [tuple(m.split(" ", 1)) for m in _strings(fields, "tokenizer.ggml.merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if any(len(p) != 2 or p[0] not in vocabulary or p[1] not in vocabulary for p in pairs):
        raise LoadError("a merge of what the vocabulary does not have", hint="fetch the file again")
    try:
        found = package.Tokenizer(package.models.BPE(vocabulary, pairs, ignore_merges=pre in _WHOLE_WORDS))
        cuts = [package.pre_tokenizers.Split(package.Regex(e), "isolated") for e in PRE_TOKENIZERS[pre]]
        last = package.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        found.pre_tokenizer = package.pre_tokenizers.Sequence([*cuts, last])
        found.add_special_tokens([package.AddedToken(t, normalized=False, special=True) for t in special])
    except Exception as error:  # the package raises errors of no common kind
        raise LoadError(f"a tokenizer that cannot be built: {shown(str(error))}", hint="fetch it again") from error
    return found


def _special(tokens: list[str], kinds: Field) -> dict[str, int]:
    listed = kinds if isinstance(kinds, list) else []
    if listed and len(listed) != len(tokens):
        raise LoadError(f"{len(listed):,} types of {len(tokens):,} tokens", hint="fetch the file again")
    return {t: i for i, (t, kind) in enumerate(zip(tokens, listed, strict=False)) if kind in (_CONTROL, _USER_DEFINED)}


def _strings(fields: Mapping[str, Field], name: str) -> list[str]:
    found = fields.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(s, str) for s in found):
        raise LoadError(f"no list of strings {name}", hint="the file has no tokenizer; pass tokens in place of text")
    return cast(list[str], found)


def _id(fields: Mapping[str, Field], which: str, count: int) -> int | None:
    found = fields.get(f"tokenizer.ggml.{which}_token_id")
    return found if isinstance(found, int) and 0 <= found < count else None


__all__ = ["PRE_TOKENIZERS", "Stream", "Tokenizer", "byte_of"]
