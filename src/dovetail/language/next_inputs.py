"""The inputs of a step on the card: a step leaves there what the next one needs, and the host only reads the tokens.

Where the host goes on with another token, or at another position, it copies these there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from dovetail.ir.literal import Array
from dovetail.language.caches import MOST_RANGES
from dovetail.runtime.program import Program
from dovetail.targets.runtime.arrays.device_array import DeviceArray


class Turn:
    """Tokens and positions of neighbouring slots on the card, and what the host knows of them."""

    def __init__(self, input_ids: DeviceArray, positions: DeviceArray) -> None:
        self.input_ids, self.positions = input_ids, positions
        self._tokens: list[int] | None = None
        """Those on the card; None where the host has not read them."""
        self._at: list[int] | None = None
        """The positions on the card; None while a run changes them, and after one that failed."""
        self._began: list[int] = []
        """The positions with which the last run began."""

    def begin(self, tokens: Sequence[int | None], at: Sequence[int], room: int) -> None:
        """Have these on the card for a run.

        A slot without a token may have any one, and any position from its own on that is in its cache.
        """
        if self._tokens is None or not all(map(_is_as_good, self._tokens, tokens)):
            _copy([token or 0 for token in tokens], self.input_ids)
        self._began = self._at or []
        if self._at is None or not all(map(partial(_is_within, room), self._at, at, tokens)):
            self._began = [*at]
            _copy(self._began, self.positions)
        self._tokens = self._at = None

    def ended(self, chosen: list[int] | None) -> None:
        """The run has gone on to the next positions, and to these tokens; None where the host has not read them."""
        self._tokens, self._at = chosen, [at + 1 for at in self._began]


class NextInputs:
    """Inputs of steps by the slots that these are of. Runs that are given the same arrays check them once."""

    def __init__(self) -> None:
        self._turns: dict[tuple[int, int], Turn] = {}
        self._keys: DeviceArray | None = None

    def turn(self, low: int, high: int, program: Program) -> Turn:
        """The tokens and positions of some slots."""
        if (low, high) not in self._turns:
            if len(self._turns) >= MOST_RANGES:
                self._turns.clear()
            count = high - low
            zeros = np.zeros((count, 1), np.int64)
            there = program.to_device({"input_ids": zeros, "positions": zeros[0] if count == 1 else zeros})
            self._turns[low, high] = Turn(there["input_ids"], there["positions"])
        return self._turns[low, high]

    def keys(self, keys: Array, program: Program) -> DeviceArray:
        """The positions of the rows that a run reads, which follow from their number."""
        if self._keys is None or self._keys.size != keys.size:
            self._keys = program.to_device({"keys": keys})["keys"]
        return self._keys


def _is_as_good(there: int, wanted: int | None) -> bool:
    """Whether a run may take a token on the card for one that is wanted, or for that of a slot without one."""
    return there >= 0 if wanted is None else there == wanted


def _is_within(room: int, there: int, wanted: int, token: int | None) -> bool:
    """The same of a position."""
    return there == wanted if token is not None else wanted <= there < room


def _copy(numbers: Sequence[int], target: DeviceArray) -> None:
    target.lease.buffer.copy_from_host(np.asarray(numbers, np.int64).reshape(target.shape))


__all__ = ["NextInputs", "Turn"]
