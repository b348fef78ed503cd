"""One sequence of a decoder: its KV cache, and the tokens that it holds."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir.literal import Array
from dovetail.language.programs import Programs
from dovetail.language.slots import Slots


class Session:
    """The KV cache of one sequence."""

    def __init__(self, programs: Programs) -> None:
        self._slots = Slots(programs)

    @property
    def tokens(self) -> list[int]:
        """The tokens whose keys and values the cache holds."""
        return self._slots.tokens[0]

    def extend(self, tokens: Sequence[int]) -> Array:
        """Take tokens in; the logits after the last of them."""
        return self._slots.extend(0, tokens)[0]

    def extend_all(self, tokens: Sequence[int], wanted: int) -> Array:
        """Take tokens in; the logits after the last ones, as many as are `wanted`, [wanted, vocabulary]."""
        return self._slots.extend(0, tokens, wanted)

    @property
    def chooses(self) -> bool:
        """Whether programs choose the likeliest token: `likeliest` then takes less time than `extend`."""
        return self._slots.chooses

    def likeliest(self, token: int) -> int:
        """Take a token in; the likeliest one after it, where programs choose it."""
        return self._slots.likeliest({0: token})[0]

    def states(self, tokens: Sequence[int]) -> Array:
        """The last layer's states of tokens that take the place of those that the cache holds, [tokens, hidden]."""
        return self._slots.states(0, tokens)

    def trim(self, count: int) -> None:
        """Forget all tokens but the first ones."""
        self._slots.trim(0, count)


__all__ = ["Session"]
