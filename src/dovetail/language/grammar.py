"""Grammars over bytes, and which tokens continue a text of one.

A rule has alternatives; an alternative is a sequence of byte sets, rules and repetitions. A matcher holds every way to
go on as a stack of what is still expected, so that a byte costs one look at each stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import UnsupportedError
from dovetail.ir.literal import Array

MOST_STATES = 4096
"""States of a matcher that are kept."""
MOST_OPENED = 250_000
"""Stacks that are looked at for all tokens at once: one client's schema must not keep the others waiting."""
MOST_WAYS, DEEPEST = 4096, 512
"""Stacks that are opened at once, and elements of one: texts nest no deeper."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Any byte of a set, which is 256 bits."""

    mask: int

    @staticmethod
    def of(*ranges: int | tuple[int, int]) -> Bytes:
        pairs = [(r, r) if isinstance(r, int) else r for r in ranges]
        return Bytes(sum({b: 1 << b for low, high in pairs for b in range(low, high + 1)}.values()))


@dataclass(frozen=True, slots=True)
class Rule:
    """One of a rule's alternatives."""

    name: str


@dataclass(frozen=True, slots=True)
class Times:
    """An element again and again: at least and at most a number of times."""

    element: Rule
    least: int
    most: int | None


Element = Bytes | Rule | Times
Alternative = tuple[Element, ...]


class Node:
    """The top of a stack: the next element, and the stack after it. It keeps its hash: stacks share their ends."""

    __slots__ = ("depth", "key", "rest", "top")

    def __init__(self, top: Element, rest: Stack) -> None:
        self.top, self.rest = top, rest
        self.depth: int = 1 if rest is None else rest.depth + 1
        self.key = hash((top, None if rest is None else rest.key))

    def __hash__(self) -> int:
        return self.key

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Node):
            return self is other
        return self.key == other.key and self.top == other.top and self.rest == other.rest


Stack = Node | None
"""What is still expected."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """Rules by name, and the one that a text is."""

    rules: Mapping[str, tuple[Alternative, ...]]
    root: str


def text(said: str | bytes) -> Alternative:
    """Exactly these bytes."""
    raw = said.encode() if isinstance(said, str) else said
    return tuple(Bytes(1 << b) for b in raw)


class State:
    """All ways to go on, and the states after bytes that were looked at: most bytes lead to few states."""

    __slots__ = ("after", "ways")

    def __init__(self, ways: frozenset[Stack]) -> None:
        self.ways = ways
        self.after: dict[int, State] = {}

    def __bool__(self) -> bool:
        return bool(self.ways)


class Matcher:
    """Where a text is in a grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._states: dict[frozenset[Stack], State] = {}
        self.opened = 0
        """Stacks that were looked at."""
        self.state = self._known(self._opened([_pushed((Rule(grammar.root),), None)]))
        """The same object where the same bytes may follow, as long as it is kept."""

    @property
    def is_complete(self) -> bool:
        """Whether the text may end here."""
        return None in self.state.ways

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow."""
        return self.state.ways == frozenset((None,))

    def accepts(self, raw: bytes) -> bool:
        """Whether these bytes may follow, whole."""
        return bool(raw) and bool(self._after(raw))

    def advance(self, raw: bytes) -> None:
        """Take bytes in that may follow."""
        self.state = self._after(raw)

    def after_byte(self, state: State, byte: int) -> State:
        """The state after one byte; one without ways where it cannot follow."""
        found = state.after.get(byte)
        if found is None:
            bit, rests = 1 << byte, list[Stack]()
            for way in state.ways:
                if way is not None and isinstance(way.top, Bytes) and way.top.mask & bit:
                    rests.append(way.rest)
            found = state.after[byte] = self._known(self._opened(rests))
        return found

    def _known(self, ways: set[Stack]) -> State:
        """The state with these ways."""
        key = frozenset(ways)
        found = self._states.get(key)
        if found is None:
            if len(self._states) >= MOST_STATES:
                self._forget()
            found = self._states[key] = State(key)
        return found

    def _forget(self) -> None:
        """Free the states that were seen: the next bytes find theirs anew."""
        for state in self._states.values():
            state.after.clear()
        self._states.clear()

    def _after(self, raw: bytes) -> State:
        state = self.state
        for byte in raw:
            state = self.after_byte(state, byte)
            if not state:
                break
        return state

    def _opened(self, stacks: Sequence[Stack]) -> set[Stack]:
        """Stacks that begin with bytes, or are empty: rules and repetitions at their top are spelled out."""
        found, todo, seen = set[Stack](), list(stacks), set[Stack]()
        while todo:
            stack = todo.pop()
            if stack is None or isinstance(stack.top, Bytes):
                found.add(stack)
                continue
            if stack in seen:
                continue
            seen.add(stack)
            if len(seen) > MOST_WAYS:
                raise UnsupportedError(f"a schema with more than {MOST_WAYS} ways to go on", hint="make it simpler")
            if stack.depth > DEEPEST:
                continue
            top, rest = stack.top, stack.rest
            if isinstance(top, Rule):
                todo += [_pushed(sequence, rest) for sequence in self._grammar.rules[top.name]]
                continue
            if top.least == 0:
                todo.append(rest)
            if top.most is None or top.most > 0:
                more = None if top.most is None else top.most - 1
                again = Times(top.element, max(top.least - 1, 0), more)
                todo.append(_pushed((top.element, again) if more != 0 else (top.element,), rest))
        self.opened += len(seen) + len(found)
        return found


def _pushed(sequence: Sequence[Element], rest: Stack) -> Stack:
    for element in reversed(sequence):
        rest = Node(element, rest)
    return rest


class Vocabulary:
    """The bytes of every token, in order, so that beginnings are compared once."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = list(tokens)
        self._sorted = sorted([i for i, raw in enumerate(self._tokens) if raw], key=self._tokens.__getitem__)
        self._last: tuple[frozenset[Stack], Array] | None = None
        """The tokens after the last state that was asked for."""

    def bytes_of(self, token: int) -> bytes:
        return self._tokens[token] if token < len(self._tokens) else b""

    def allowed(self, matcher: Matcher, size: int) -> Array:
        """Which of the tokens below `size` may follow."""
        state = matcher.state.ways
        if self._last is not None and self._last[0] == state and self._last[1].size == size:
            return self._last[1].copy()
        found = np.zeros(size, bool)
        states, before = [matcher.state], b""
        opened = matcher.opened
        for token in self._sorted:
            if matcher.opened - opened > MOST_OPENED:
                raise UnsupportedError("a schema with too many ways to go on", hint="make it simpler")
            raw = self._tokens[token]
            shared = _shared(before, raw, len(states) - 1)
            del states[shared + 1 :]
            for byte in raw[shared:]:
                if not states[-1]:
                    break
                states.append(matcher.after_byte(states[-1], byte))
            before = raw
            # Beginnings that nothing follows are shared, too: all that begins so is refused.
            if token < size:
                found[token] = len(states) == len(raw) + 1 and bool(states[-1])
        self._last = (state, found)
        return found.copy()


def _shared(one: bytes, other: bytes, most: int) -> int:
    """How many bytes both begin with, `most` at most."""
    most = min(most, len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return next(i for i in range(most) if one[i] != other[i])


__all__ = ["Alternative", "Bytes", "Element", "Grammar", "Matcher", "Rule", "Times", "Vocabulary", "text"]
