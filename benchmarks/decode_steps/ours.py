"""Our tokens: the programs of a language model."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir.literal import Array
from dovetail.language import LanguageModel
from dovetail.models.kv_cache import CacheKind
from dovetail.settings import Precision


class OurSequence:
    """One sequence of a model."""

    def __init__(self, path: str, threads: int, precision: Precision, kv_cache: CacheKind | None) -> None:
        self._session = LanguageModel(path, threads=threads, precision=precision, kv_cache=kv_cache).session()

    def extend(self, tokens: Sequence[int]) -> Array:
        """Take tokens in; the logits after the last of them."""
        return self._session.extend(tokens)

    logits = extend

    def trim(self, count: int) -> None:
        """Forget all tokens but the first ones."""
        self._session.trim(count)


def load(path: str, threads: int, peer: str) -> OurSequence:
    """A sequence of the model in a file, by the precision that the peer's name says, and the kind of its cache."""
    precision, _, kind = peer.partition(" ")
    return OurSequence(
        path, threads, "fast" if precision == "fast" else "exact", kv_cache="f16" if kind == "f16" else None
    )
