"""Our tokens: the programs of a language model."""

from __future__ import annotations

from dovetail import LanguageModel
from dovetail.language.session import Session


def load(path: str, threads: int, peer: str) -> Session:
    """A sequence of the model in a file, by the precision that the peer's name says."""
    return LanguageModel(path, threads=threads, precision=peer).session()
