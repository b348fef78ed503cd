"""Sequences that decode in one batch: slots of one KV cache, each with the tokens that it holds.

In exact mode a sequence has the same bits whatever the others do, and however its tokens are cut into runs.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import SupportsIndex

import numpy as np

from dovetail.errors import OptionError
from dovetail.ir.literal import Array
from dovetail.language.programs import Programs
from dovetail.models import kv_cache
from dovetail.models.decoder_shape import DecoderShape
from dovetail.runtime.program import Program
from dovetail.targets.runtime.device_array import DeviceArray

PADDING = 32
"""Rows of the cache that a run reads come in multiples of this, so that few sizes are prepared."""
FIRST_ROOM = 256
CHUNK = 128
"""Tokens of a prompt that one run takes: attention reads no keys after them, and more rows are not faster."""
TILES_CHUNK = 512
"""The same where many rows are multiplied on tiles, for which all weights are expanded."""


class Slots:
    """A KV cache for several sequences. It grows by half without a new compilation; runs write their rows in place."""

    def __init__(self, programs: Programs, count: int = 1) -> None:
        if count < 1:
            raise OptionError(f"{count} sequences at once", hint="ask for 1 or more")
        self.shape, self.count, self._programs = programs.shape, count, programs
        self._chunk = TILES_CHUNK if programs.on_tiles else CHUNK
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        """The tokens whose keys and values each slot holds."""
        self._room = 0
        self._caches: dict[str, Array] = {}
        self._there: dict[str, DeviceArray] = {}
        """The caches of a single sequence, in the memory of a device: runs write their rows there."""

    def extend(self, slot: int, tokens: Sequence[int], wanted: int = 1) -> Array:
        """Take tokens in; the logits after the last ones, as many as are `wanted`."""
        held = self.tokens[slot]
        check_tokens(self.shape, tokens, len(held))
        self.make_room(len(held) + len(tokens))
        found: list[Array] = []
        for start in range(0, len(tokens), self._chunk):
            part = tokens[start : start + self._chunk]
            # The head, a fifth of a small model's weights, is read only for the runs whose logits are wanted.
            first = min(max(len(tokens) - wanted - start, 0), len(part))
            found.append(self._run(slot, part, first))
        rows = np.concatenate(found) if len(found) > 1 else found[0]
        return rows[len(rows) - min(wanted, len(tokens)) :]

    def step(self, tokens: Mapping[int, int]) -> dict[int, Array]:
        """One token for each of some slots; the logits after it by slot."""
        for slot, token in tokens.items():
            check_tokens(self.shape, [token], len(self.tokens[slot]))
        if len(tokens) == 1:
            ((slot, token),) = tokens.items()
            return {slot: self.extend(slot, [token])[0]}
        low, high = min(tokens), max(tokens) + 1
        self.make_room(1 + max(len(self.tokens[slot]) for slot in tokens))
        for slot in range(low, high):
            # A slot without a token writes after those that it holds, where nothing is read before it is written.
            if slot not in tokens:
                self.trim(slot, min(len(self.tokens[slot]), self._room - 1))
        positions = [len(held) for held in self.tokens[low:high]]
        found = self._programs.batch.run(
            {
                "input_ids": np.asarray([[tokens.get(slot, 0)] for slot in range(low, high)], np.int64),
                "positions": np.asarray(positions, np.int64)[:, None],
                "keys": self._keys(1 + max(positions[slot - low] for slot in tokens)),
                **self._rows(low, high),
            }
        )["logits"]
        for slot, token in tokens.items():
            self.tokens[slot].append(token)
        return {slot: found[slot - low, 0] for slot in tokens}

    def states(self, slot: int, tokens: Sequence[int]) -> Array:
        """The last layer's states of tokens, [tokens, hidden]; the slot holds these tokens afterwards."""
        check_tokens(self.shape, tokens)
        self.trim(slot, 0)
        self.make_room(len(tokens))
        parts: list[Array] = []
        for start in range(0, len(tokens), self._chunk):
            part = tokens[start : start + self._chunk]
            given, _ = self._given(slot, part)
            parts.append(self._programs.states.run(self._placed(given, self._programs.states))["states"][0])
            self.tokens[slot] += part
        return np.concatenate(parts)

    def trim(self, slot: int, count: int) -> None:
        """Forget all tokens of a slot but the first ones."""
        held = self.tokens[slot]
        if not 0 <= count <= len(held):
            raise OptionError(f"{count} of {len(held)} tokens", hint="keep as many as there are, or fewer")
        del held[count:]

    def copy(self, source: int, target: int, count: int) -> None:
        """Make the first tokens of one slot all that another holds."""
        for cache in self._caches.values():
            cache[target, :, :count] = cache[source, :, :count]
        self.tokens[target] = self.tokens[source][:count]

    def _run(self, slot: int, tokens: Sequence[int], first: int) -> Array:
        """Logits after the tokens from `first` on; after one token at least, apart from those of a CPU's prompt."""
        given, end = self._given(slot, tokens)
        if len(tokens) == 1:
            program = self._programs.step
        else:
            # The head takes as long as a layer or more: on a CPU a run computes no logits where none are wanted.
            first = first if self._programs.on_cpu else min(first, len(tokens) - 1)
            program, given["wanted"] = self._programs.prompt, np.arange(first, len(tokens))
        found = program.run(self._placed(given, program))["logits"][0]
        self.tokens[slot] += tokens
        assert len(self.tokens[slot]) == end, "positions are counted"
        return found

    def _given(self, slot: int, tokens: Sequence[int]) -> tuple[dict[str, Array], int]:
        """The inputs of a run of one slot, and the position after its tokens."""
        first, end = len(self.tokens[slot]), len(self.tokens[slot]) + len(tokens)
        given = {"input_ids": np.asarray([tokens], np.int64), "positions": np.arange(first, end)}
        return {**given, "keys": self._keys(end), **self._rows(slot, slot + 1)}, end

    def _placed(self, given: Mapping[str, Array], program: Program) -> Mapping[str, Array | DeviceArray]:
        """The inputs of a run with the caches of a single sequence where the program runs."""
        if not self._programs.on_card or self.count > 1:
            return given
        self._there = self._there or program.to_device({name: given[name] for name in self._caches})
        return {**given, **self._there}

    def _keys(self, end: int) -> Array:
        """Positions of the rows that a run reads: rows after the last token are after all of its queries, too."""
        return np.arange(min(-(-end // PADDING) * PADDING, self._room))

    def _rows(self, low: int, high: int) -> dict[str, Array]:
        return {name: cache[low:high] for name, cache in self._caches.items()}

    def make_room(self, length: int) -> None:
        """Make room for a number of tokens; rows that no token has written hold zeros."""
        if length <= self._room:
            return
        of = self.shape
        most = -(-of.context // PADDING) * PADDING
        room = min(max(FIRST_ROOM, -(-length // PADDING) * PADDING, self._room * 3 // 2 // PADDING * PADDING), most)
        held = max(map(len, self.tokens))
        self._caches |= {name: cache.numpy() for name, cache in self._there.items()}
        self._there = {}
        size = (self.count, of.kv_heads, room)
        for index in range(of.layers):
            wider = kv_cache.zeros(self._programs.kind, index, size, of.width)
            for name, cache in wider.items():
                if held:
                    cache[:, :, :held] = self._caches[name][:, :, :held]
            self._caches |= wider
        self._room = room


def check_tokens(of: DecoderShape, tokens: Sequence[int], held: int = 0) -> None:
    """Raise unless a decoder can take these tokens in after those that it holds."""
    if not _is_list(tokens):
        raise OptionError(f"a prompt that is {tokens!r:.40}", hint="pass text, or a list of tokens")
    if not len(tokens):
        raise OptionError("an empty prompt", hint="pass text or tokens that the model continues")
    odd = next((i for i, token in enumerate(tokens) if not _is_below(token, of.vocabulary)), None)
    if odd is not None:
        raise OptionError(f"the token {tokens[odd]!r:.40}", hint=f"tokens are from 0 to {of.vocabulary - 1}")
    if held + len(tokens) > of.context:
        raise OptionError(
            f"{held + len(tokens):,} tokens, and the model has {of.context:,} positions", hint="shorten the prompt"
        )


def _is_list(said: object) -> bool:
    """Whether something lists numbers, as far as can be told without looking at them."""
    if isinstance(said, np.ndarray):
        return said.ndim == 1
    return isinstance(said, Sequence) and not isinstance(said, str | bytes | bytearray)


def _is_below(token: object, count: int) -> bool:
    return isinstance(token, SupportsIndex) and not isinstance(token, bool) and 0 <= operator.index(token) < count


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    if one == other[: len(one)]:
        return len(one)
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


__all__ = ["Slots", "check_tokens", "common"]
