"""Byte-level BPE: pre-tokenizers cut text into words, merges make tokens of their bytes.

An unknown pre-tokenizer is refused: another one would cut text elsewhere, and the model would read other tokens than it
was trained with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.gguf.file import shown

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_DIGITS = r"\p{N}"
_CJK = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_PUNCTUATION = r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"
_CASED = (
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}"
    r"\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}"
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}"
    r"\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}"
    r"\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}"
    r"\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}"
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}"
    r"\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}"
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}"
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}"
    r"\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}"
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
"""Letters with a case."""


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut into words."""

    cuts: tuple[str, ...]
    """Expressions that cut text one after the other."""
    whole_words: bool = False
    """Whether words are tokens where the vocabulary has them, whatever the merges say."""
    adds_bos: bool = False
    """Whether text starts with the token for that, where a file says nothing."""


_OF_GPT2, _OF_QWEN2 = PreTokenizer((_GPT2,)), PreTokenizer((_QWEN2,))
_OF_LLAMA3 = PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True)
_BY_DIGIT = PreTokenizer((_DIGITS, _GPT2))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "gpt-2": _OF_GPT2,
    "phi-2": _OF_GPT2,
    "mpt": _OF_GPT2,
    "llama-bpe": _OF_LLAMA3,
    "llama3": _OF_LLAMA3,
    "llama-v3": _OF_LLAMA3,
    "qwen2": _OF_QWEN2,
    "deepseek-r1-qwen": _OF_QWEN2,
    "qwen35": PreTokenizer((_QWEN35,)),
    "smollm": _BY_DIGIT,
    "starcoder": _BY_DIGIT,
    "refact": _BY_DIGIT,
    "command-r": _BY_DIGIT,
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-llm": PreTokenizer((r"[\r\n]", rf"\s?[{_CASED}]+", _PUNCTUATION, r"\s+$", _CJK, r"\p{N}+")),
}
"""By the name in files."""


class _Encoded(Protocol):
    ids: list[int]


class Package(Protocol):
    """A tokenizer of the tokenizers package, as far as it is used."""

    def encode(self, text: str, *, add_special_tokens: bool) -> _Encoded: ...


class ByteLevel:
    """Tokens of text without special tokens."""

    def __init__(self, pre: object, tokens: Sequence[str], merges: Sequence[str]) -> None:
        if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
            raise UnsupportedError(
                f"the pre-tokenizer {shown(str(pre))!r}",
                hint=f"{', '.join(PRE_TOKENIZERS)} are known; another one would give other tokens",
            )
        self.adds_bos = PRE_TOKENIZERS[pre].adds_bos
        self._package = _built(PRE_TOKENIZERS[pre], tokens, merges)

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """The tokens of a text; whether it starts a text makes no difference."""
        return self._package.encode(text, add_special_tokens=False).ids

    def bytes_of(self, token: str) -> bytes:
        """The bytes that a token stands for."""
        unit = byte_of()
        return b"".join([unit.get(c, c.encode("utf-8", "replace")) for c in token])


def package() -> Any:
    """The tokenizers package, which is optional: tokens in place of text need none."""
    try:
        import tokenizers
    except ImportError as error:
        raise UnsupportedError(
            "text needs the tokenizers package", hint="pip install 'dovetail-ml[language]', or pass tokens"
        ) from error
    return cast(Any, tokenizers)


def _built(of: PreTokenizer, tokens: Sequence[str], merges: Sequence[str]) -> Package:
    pairs = [tuple(m.split(" ", 1)) for m in merges]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if any(len(p) != 2 or p[0] not in vocabulary or p[1] not in vocabulary for p in pairs):
        raise LoadError("a merge of what the vocabulary does not have", hint="fetch the file again")
    given = package()
    try:
        found = given.Tokenizer(given.models.BPE(vocabulary, pairs, ignore_merges=of.whole_words))
        cuts = [given.pre_tokenizers.Split(given.Regex(e), "isolated") for e in of.cuts]
        last = given.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        found.pre_tokenizer = given.pre_tokenizers.Sequence([*cuts, last])
    except Exception as error:  # the package raises errors of no common kind
        raise LoadError(f"a tokenizer that cannot be built: {shown(str(error))}", hint="fetch it again") from error
    return found


@lru_cache(maxsize=1)
def byte_of() -> Mapping[str, bytes]:
    """The byte that each character of a byte-level vocabulary stands for."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in kept]
    return {chr(b): bytes([b]) for b in kept} | {chr(256 + i): bytes([b]) for i, b in enumerate(others)}


__all__ = ["PRE_TOKENIZERS", "ByteLevel", "PreTokenizer", "byte_of", "package"]
