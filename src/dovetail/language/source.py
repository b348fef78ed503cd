"""Where a language model comes from: a GGUF file, or a folder with safetensors, `config.json` and `tokenizer.json`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.checkpoint import read_checkpoint
from dovetail.frontends.decoder_families import DecoderFile
from dovetail.frontends.gguf.adapter import with_adapter
from dovetail.frontends.gguf.decoder import read_decoder
from dovetail.frontends.gguf.file import Field, read_gguf
from dovetail.language.checkpoint_tokenizer import CheckpointTokenizer, ends_of_folder, template_of_folder
from dovetail.language.tokenizer import GgufTokenizer, Tokenizer, ends_of_fields
from dovetail.sanitize import sanitize


@dataclass(frozen=True, slots=True)
class Source:
    """What a language model is made of."""

    decoder: DecoderFile
    fields: Mapping[str, Field]
    """Of a GGUF file; none of a folder."""
    ends: Callable[[], frozenset[int]]
    """Tokens that end a text or a turn."""
    template: str | None
    """The chat template."""
    tokenizer: Callable[[], Tokenizer]
    """Made when text is first used: tokens need none."""


def open_source(
    path: str | os.PathLike[str],
    context: int | None = None,
    adapter: str | os.PathLike[str] | None = None,
    adapter_scale: float = 1.0,
) -> Source:
    """A language model's file or folder, for a number of positions, or for those that it is made for.

    The updates of an adapter are taken `adapter_scale` times.
    """
    found = _opened(path, context)
    if adapter is None:
        return found
    _refuse_peft(Path(adapter))
    return replace(found, decoder=with_adapter(found.decoder, found.fields, read_gguf(adapter), adapter_scale))


def _refuse_peft(path: Path) -> None:
    """Say of an adapter in another format which one is read."""
    is_peft = path.is_dir() and (path / "adapter_config.json").is_file()
    hint = "convert it to a GGUF file: llama.cpp has convert_lora_to_gguf.py"
    if is_peft or path.suffix == ".safetensors":
        raise UnsupportedError("an adapter in PEFT's format", hint=hint, where=sanitize(str(path)))
    if path.is_dir():
        raise LoadError("a folder without an adapter", hint="pass a GGUF file", where=sanitize(str(path)))


def _opened(path: str | os.PathLike[str], context: int | None) -> Source:
    place = Path(path)
    if place.is_dir():
        decoder = read_checkpoint(place, context)
        ends = ends_of_folder(place)
        return Source(decoder, {}, lambda: ends, template_of_folder(place), lambda: CheckpointTokenizer(place))
    file = read_gguf(place)
    said = file.fields.get("tokenizer.chat_template")
    template = said if isinstance(said, str) else None
    return Source(
        read_decoder(file, context),
        file.fields,
        lambda: ends_of_fields(file.fields),
        template,
        lambda: GgufTokenizer(file.fields),
    )


__all__ = ["Source", "open_source"]
