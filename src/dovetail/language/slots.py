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
from dovetail.language.caches import Caches
from dovetail.language.next_inputs import NextInputs, Turn
from dovetail.language.programs import Programs
from dovetail.models.decoder_shape import DecoderShape
from dovetail.runtime.program import Program
from dovetail.targets.runtime.arrays.device_array import DeviceArray

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
        self._caches = Caches(programs, count)
        self._next = NextInputs()

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
        program, given, turn = self._of_a_token(tokens)
        if turn is None:
            found = program.run(given)["logits"]
        else:
            # A run whose inputs and outputs are there is one launch, and one frame serves both kinds of steps.
            found = program.run(given, outputs="device")["logits"].numpy()
            turn.ended(None)
        self._append(tokens)
        low = min(tokens)
        return {slot: found[slot - low, 0] for slot in tokens}

    def likeliest(self, tokens: Mapping[int, int]) -> dict[int, int]:
        """One token for each of some slots, and the likeliest next one by slot, or NO_TOKEN where there is none.

        The logits stay on the card, and so do the inputs of the next step where the text goes on with these tokens.
        """
        program, given, turn = self._of_a_token(tokens)
        assert turn is not None, "programs choose tokens"
        found: list[int] = program.run(given, outputs="device")["next_ids"].numpy()[:, 0].tolist()
        turn.ended(found)
        self._append(tokens)
        low = min(tokens)
        return {slot: found[slot - low] for slot in tokens}

    @property
    def chooses(self) -> bool:
        """Whether programs choose the likeliest token: `likeliest` then takes less time than `step`."""
        return self._programs.on_card

    def states(self, slot: int, tokens: Sequence[int]) -> Array:
        """The last layer's states of tokens, [tokens, hidden]; the slot holds these tokens afterwards."""
        check_tokens(self.shape, tokens)
        self.trim(slot, 0)
        self.make_room(len(tokens))
        parts: list[Array] = []
        for start in range(0, len(tokens), self._chunk):
            part = tokens[start : start + self._chunk]
            given = self._given(slot, part, self._programs.states)
            parts.append(self._programs.states.run(given)["states"][0])
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
        self._caches.copy(source, target, count)
        self.tokens[target] = self.tokens[source][:count]

    def make_room(self, length: int) -> None:
        """Make room for a number of tokens in each slot."""
        self._caches.make_room(length, max(map(len, self.tokens)))

    def _run(self, slot: int, tokens: Sequence[int], first: int) -> Array:
        """Logits after the tokens from `first` on; after one token at least, apart from those of a CPU's prompt."""
        if len(tokens) == 1:
            return self.step({slot: tokens[0]})[slot][None]
        # The head takes as long as a layer or more: on a CPU a run computes no logits where none are wanted.
        first = first if self._programs.on_cpu else min(first, len(tokens) - 1)
        program = self._programs.prompt
        found = program.run({**self._given(slot, tokens, program), "wanted": np.arange(first, len(tokens))})
        self.tokens[slot] += tokens
        return found["logits"][0]

    def _given(self, slot: int, tokens: Sequence[int], program: Program) -> dict[str, Array | DeviceArray]:
        """The inputs of a run of several tokens of one slot."""
        first, end = len(self.tokens[slot]), len(self.tokens[slot]) + len(tokens)
        given = {"input_ids": np.asarray([tokens], np.int64), "positions": np.arange(first, end)}
        return {**given, "keys": self._caches.keys(end), **self._caches.of(slot, slot + 1, program)}

    def _of_a_token(self, tokens: Mapping[int, int]) -> tuple[Program, dict[str, Array | DeviceArray], Turn | None]:
        """The program that takes one token for each of some slots, its inputs, and those of them that it overwrites."""
        for slot, token in tokens.items():
            check_tokens(self.shape, [token], len(self.tokens[slot]))
        low, high = min(tokens), max(tokens) + 1
        self.make_room(1 + max(len(self.tokens[slot]) for slot in tokens))
        for slot in range(low, high):
            # A slot without a token writes after those that it holds, where nothing is read before it is written.
            if slot not in tokens:
                self.trim(slot, min(len(self.tokens[slot]), self._caches.room - 1))
        program = self._programs.step if len(tokens) == 1 else self._programs.batch
        at = [len(held) for held in self.tokens[low:high]]
        keys = self._caches.keys(1 + max(len(self.tokens[slot]) for slot in tokens))
        caches = self._caches.of(low, high, program)
        if self._programs.on_card:
            turn = self._next.turn(low, high, program)
            turn.begin([tokens.get(slot) for slot in range(low, high)], at, self._caches.room)
            given = {"input_ids": turn.input_ids, "positions": turn.positions, "keys": self._next.keys(keys, program)}
            return program, {**given, **caches}, turn
        ids = np.asarray([[tokens.get(slot, 0)] for slot in range(low, high)], np.int64)
        positions = np.asarray(at, np.int64)
        given = {"input_ids": ids, "positions": positions if len(tokens) == 1 else positions[:, None], "keys": keys}
        return program, {**given, **caches}, None

    def _append(self, tokens: Mapping[int, int]) -> None:
        for slot, token in tokens.items():
            self.tokens[slot].append(token)


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
