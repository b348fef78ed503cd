"""Inputs of steps that stay on the card: what the host copies there, and when it need not."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.ir.dtype import i64
from dovetail.ir.literal import Array
from dovetail.language import next_inputs
from dovetail.language.next_inputs import Turn
from dovetail.targets.runtime.arrays.device_array import host_array

ROOM = 10


class Card:
    """A turn of three slots in host memory, with what was copied there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids, self.positions = np.zeros((3, 1), np.int64), np.zeros((3, 1), np.int64)
        self.turn = Turn(host_array(self.ids, i64), host_array(self.positions, i64))
        self.copies = 0
        copy = next_inputs._copy  # pyright: ignore[reportPrivateUsage]

        def counted(*given: object) -> None:
            self.copies += 1
            copy(*given)  # pyright: ignore[reportArgumentType]

        monkeypatch.setattr(next_inputs, "_copy", counted)

    def begin(self, tokens: list[int | None], at: list[int]) -> int:
        """How many arrays are copied for a run."""
        before = self.copies
        self.turn.begin(tokens, at, ROOM)
        return self.copies - before

    def run(self, chosen: list[int], *, read: bool = True) -> None:
        self.ids[:, 0] = chosen
        self.positions += 1
        self.turn.ended(chosen if read else None)

    @property
    def there(self) -> tuple[list[int], list[int]]:
        def listed(numbers: Array) -> list[int]:
            return numbers[:, 0].tolist()

        return listed(self.ids), listed(self.positions)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    return Card(monkeypatch)


def test_a_text_that_goes_on_copies_nothing(card: Card) -> None:
    assert card.begin([5, 6, 7], [1, 2, 3]) == 2 and card.there == ([5, 6, 7], [1, 2, 3])
    card.run([8, 9, 1])
    assert card.begin([8, 9, 1], [2, 3, 4]) == 0
    card.run([2, 2, 2])
    assert card.begin([2, 3, 2], [3, 4, 5]) == 1 and card.there == ([2, 3, 2], [3, 4, 5]), "another token"
    card.run([4, 4, 4])
    assert card.begin([4, 4, 4], [4, 1, 6]) == 1 and card.there == ([4, 4, 4], [4, 1, 6]), "a slot that was trimmed"


def test_tokens_that_the_host_did_not_read_are_copied(card: Card) -> None:
    card.begin([5, 6, 7], [1, 2, 3])
    card.run([8, 9, 1], read=False)
    assert card.begin([8, 9, 1], [2, 3, 4]) == 1 and card.there == ([8, 9, 1], [2, 3, 4])


def test_a_slot_that_waits_writes_after_its_tokens_and_within_its_room(card: Card) -> None:
    card.begin([5, None, 7], [1, 7, 3])
    for count in range(1, 3):
        card.run([1, 1, 1])
        assert card.begin([1, None, 1], [1 + count, 7, 3 + count]) == 0 and card.there[1][1] == 7 + count < ROOM
    card.run([1, 1, 1])
    assert card.begin([1, None, 1], [4, 7, 6]) == 1 and card.there[1] == [4, 7, 6]
    card.run([1, 1, 1])
    assert card.begin([1, None, 1], [5, 9, 7]) == 1 and card.there[1] == [5, 9, 7], "it has more tokens by now"
    card.run([1, -1, 1])
    assert card.begin([1, None, 1], [6, 9, 8]) == 2 and card.there == ([1, 0, 1], [6, 9, 8]), "-1 is no token"


def test_a_run_that_failed_leaves_nothing_to_rely_on(card: Card) -> None:
    card.begin([5, 6, 7], [1, 2, 3])
    assert card.begin([5, 6, 7], [1, 2, 3]) == 2
