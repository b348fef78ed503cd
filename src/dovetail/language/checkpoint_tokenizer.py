"""Tokenizers from a folder: `tokenizer.json`, with what `tokenizer_config.json` and `config.json` say of its tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from dovetail.errors import LoadError
from dovetail.frontends.checkpoint import CONFIG, read_json
from dovetail.frontends.shared.messages import printable
from dovetail.language.byte_level import byte_of, package
from dovetail.language.tokenizer import ENDS

MOST_TOKENS = 1 << 22
TOKENIZER, TOKENIZER_CONFIG, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class CheckpointTokenizer:
    """A tokenizer of the tokenizers package, as its folder describes it."""

    def __init__(self, folder: Path) -> None:
        said = read_json(folder / TOKENIZER)
        self._plain, self._special = _loaded(folder), _loaded(folder)
        self._plain.encode_special_tokens = True
        count = self._special.get_vocab_size(with_added_tokens=True)
        by_name = cast(Mapping[str, int], self._special.get_vocab(with_added_tokens=True))
        most = max(by_name.values(), default=-1) + 1
        if not 0 < most <= MOST_TOKENS:
            raise LoadError(f"{count:,} tokens up to {most:,}", hint="fetch the folder again")
        self.tokens: Sequence[str] = [""] * most
        for name, i in by_name.items():
            self.tokens[i] = name
        added = _added(said, most)
        self.special: Mapping[str, int] = {a["content"]: a["id"] for a in added}
        self._control = frozenset(a["id"] for a in added if a.get("special") is True)
        self._is_byte_level = _has_part(said.get("decoder"), "ByteLevel") or _has_part(
            said.get("pre_tokenizer"), "ByteLevel"
        )
        config = _optional(folder / TOKENIZER_CONFIG)
        self.bos, self.eos = (self._named(config.get(f"{which}_token")) for which in ("bos", "eos"))
        started: list[int] = self._special.encode("a", add_special_tokens=True).ids
        self.adds_bos = self.bos is not None and started[:1] == [self.bos]
        # A text starts with a space where the vocabulary is SentencePiece's and a normalizer puts one there.
        self._prefixes = False
        self._prefixes = not self._is_byte_level and self.decode(self.encode("a", bos=False)) == " a"

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """The tokens of a text. With `special`, names of control tokens in the text are those tokens."""
        clean = text.encode("utf-8", "replace").decode("utf-8")
        found: list[int] = (self._special if special else self._plain).encode(clean, add_special_tokens=False).ids
        adds = self.adds_bos if bos is None else bos
        return [self.bos, *found] if adds and self.bos is not None and found[:1] != [self.bos] else found

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token stands for; those of a control token are none."""
        # Matrices may have more rows than there are names.
        if not 0 <= token < len(self.tokens) or token in self._control:
            return b""
        text = self.tokens[token]
        if text in self.special:
            return text.encode("utf-8", "replace")
        if self._is_byte_level:
            unit = byte_of()
            return b"".join([unit.get(c, c.encode("utf-8", "replace")) for c in text])
        match = _BYTE.fullmatch(text)
        return bytes([int(match[1], 16)]) if match else text.replace("▁", " ").encode("utf-8", "replace")

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; bytes that are no character become U+FFFD."""
        raw = b"".join(map(self.bytes_of, tokens))
        return raw.removeprefix(b" " if self._prefixes else b"").decode("utf-8", "replace")

    def _named(self, said: object) -> int | None:
        name = _name(said)
        return self._special.token_to_id(name) if isinstance(name, str) else None


def ends_of_folder(folder: Path) -> frozenset[int]:
    """The tokens that end a text or a turn, as the configurations say, or by their names."""
    listed: list[object] = [_optional(folder / name).get("eos_token_id") for name in (CONFIG, GENERATION)]
    ids = [i for each in listed for i in (cast(list[object], each) if isinstance(each, list) else [each])]
    said = _added(_optional(folder / TOKENIZER), MOST_TOKENS)
    eos = _name(_optional(folder / TOKENIZER_CONFIG).get("eos_token"))
    named = [a["id"] for a in said if a["content"] in ENDS or a["content"] == eos]
    return frozenset([i for i in (*ids, *named) if isinstance(i, int) and 0 <= i < MOST_TOKENS])


def template_of_folder(folder: Path) -> str | None:
    """The chat template of a folder: a file of its own, or a text of the tokenizer's configuration."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_bytes()[: 1 << 20].decode("utf-8", "replace")
    said: object = _optional(folder / TOKENIZER_CONFIG).get("chat_template")
    if isinstance(said, list):
        named = [cast(dict[str, object], each) for each in cast(list[object], said) if isinstance(each, dict)]
        said = next((each.get("template") for each in named if each.get("name") == "default"), None)
    return said if isinstance(said, str) else None


def _loaded(folder: Path) -> Any:
    try:
        return package().Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception as error:  # the package raises errors of no common kind
        if isinstance(error, LoadError) or type(error).__name__ == "UnsupportedError":
            raise
        raise LoadError(f"{TOKENIZER} cannot be read: {printable(str(error))}", hint="fetch it again") from error


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _added(said: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
    """The added tokens of a tokenizer that have a name and a number."""
    listed = cast(list[object], said.get("added_tokens") or [])
    maps = [cast(dict[str, Any], each) for each in listed if isinstance(each, dict)]
    named = [a for a in maps if isinstance(a.get("content"), str) and a["content"] and isinstance(a.get("id"), int)]
    return [a for a in named if 0 <= a["id"] < most]


def _name(said: object) -> object:
    """The name of a token, which is text or a map with it."""
    return cast(dict[str, object], said).get("content") if isinstance(said, dict) else said


def _has_part(said: object, kind: str) -> bool:
    """Whether a part of a tokenizer is of a kind, or is made of parts that are."""
    if isinstance(said, dict):
        known = cast(dict[str, object], said)
        return known.get("type") == kind or any(_has_part(value, kind) for value in known.values())
    return isinstance(said, list) and any(_has_part(each, kind) for each in cast(list[object], said))


__all__ = ["CheckpointTokenizer", "ends_of_folder", "template_of_folder"]
