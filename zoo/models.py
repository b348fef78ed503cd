"""All models that are judged, with their inputs."""

from __future__ import annotations

from collections.abc import Iterator

from zoo.families import documents, music, pictures, speech, text, voice
from zoo.model import Model


def models() -> Iterator[Model]:
    """All of them."""
    for family in (voice, speech, music, documents, pictures, text):
        yield from family.models()
