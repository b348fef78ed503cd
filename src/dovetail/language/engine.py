"""Requests of many clients in one batch: they join it when there is a slot, and leave when they end or are cancelled.

One thread runs the model. Between two steps of those that decode it reads at most one part of a prompt, so that a long
prompt delays the others by no more than that.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator

from dovetail.errors import DovetailError, OptionError, ServiceError
from dovetail.ir.literal import Array
from dovetail.language.generation import Piece, Writer
from dovetail.language.programs import Programs
from dovetail.language.slots import Slots, common

PART = 128
"""Tokens of a prompt that are read between two steps."""
WORTH_COPYING = 16
"""Tokens from which on a common beginning is copied from another slot."""


class Ticket:
    """A request in an engine: its pieces as they come."""

    def __init__(self, writer: Writer, seconds: float) -> None:
        self.writer = writer
        self.deadline = time.monotonic() + seconds
        self.is_cancelled = False
        self._pieces: queue.SimpleQueue[Piece | DovetailError] = queue.SimpleQueue()

    def cancel(self) -> None:
        """Leave the batch before the next step."""
        self.is_cancelled = True

    def next(self, timeout: float | None = None) -> Piece | None:
        """The next piece; None where there is none yet after `timeout` seconds."""
        try:
            found = self._pieces.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(found, DovetailError):
            raise found
        return found

    def __iter__(self) -> Iterator[Piece]:
        while True:
            piece = self.next()
            assert piece is not None, "without a timeout there is a piece"
            yield piece
            if piece.end:
                return

    def put(self, said: Piece | DovetailError) -> None:
        self._pieces.put(said)


class Engine:
    """A model that serves many requests at once."""

    def __init__(self, programs: Programs, *, slots: int = 4, waiting: int = 64) -> None:
        """`slots` requests decode at once, and `waiting` more may wait for a slot."""
        self._slots = Slots(programs, slots)
        self._most_waiting = waiting
        self._waiting: deque[Ticket] = deque()
        self._active: dict[int, Ticket] = {}
        """Requests by slot."""
        self._used = [0] * slots
        """When each slot was taken last, as a count: kept beginnings are replaced in this order."""
        self._count = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="dovetail-engine", daemon=True)
        self._thread.start()

    def submit(self, writer: Writer, *, seconds: float = 600.0) -> Ticket:
        """Hand a text in to be generated within a time."""
        return self.submit_all([writer], seconds=seconds)[0]

    def submit_all(self, writers: list[Writer], *, seconds: float = 600.0) -> list[Ticket]:
        """Hand several texts in, all or none of them."""
        self.check_count(len(writers))
        tickets = [Ticket(writer, seconds) for writer in writers]
        with self._changed:
            if self._is_closing:
                raise ServiceError("the server is closing", status=503, hint="try another one")
            free = self._slots.count - len(self._active)
            if len(self._waiting) + len(tickets) > self._most_waiting + free:
                raise ServiceError(f"{len(self._waiting)} requests wait already", status=429, hint="try again later")
            for ticket in tickets:
                for piece in ticket.writer.begun():
                    ticket.put(piece)
                if not ticket.writer.end:
                    self._waiting.append(ticket)
            self._changed.notify_all()
        return tickets

    def check_count(self, count: int) -> None:
        """Raise where a request has more texts than slots and queue ever hold."""
        most = self._slots.count + self._most_waiting
        if count > most:
            raise OptionError(f"{count} texts in one request", hint=f"send {most} at most")

    def load(self) -> tuple[int, int]:
        """How many requests decode, and how many wait."""
        with self._changed:
            return len(self._active), len(self._waiting)

    def close(self, seconds: float = 10.0) -> None:
        """End all requests and the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._active or self._is_closing):
                    self._changed.wait()
                if self._is_closing:
                    self._end_all(ServiceError("the server is closing", status=503, hint="try another one"))
                    return
                self._drop()
                self._admit()
            try:
                self._read()
                self._step()
            except Exception as error:  # whatever happens, the others are told, and the thread goes on
                with self._changed:
                    self._end_all(_told(error))

    def _drop(self) -> None:
        """Let those leave that are cancelled or out of time."""
        now = time.monotonic()
        for slot, ticket in list(self._active.items()):
            if ticket.is_cancelled or now > ticket.deadline:
                del self._active[slot]
                ticket.put(_late())
        kept = [t for t in self._waiting if not t.is_cancelled and now <= t.deadline]
        for ticket in self._waiting:
            if ticket not in kept:
                ticket.put(_late())
        self._waiting = deque(kept)

    def _admit(self) -> None:
        """Give free slots to those that wait; the slot with the longest common beginning keeps it."""
        while self._waiting and len(self._active) < self._slots.count:
            ticket = self._waiting.popleft()
            shared = self._shared(ticket)
            free = [slot for slot in range(self._slots.count) if slot not in self._active]
            best = max(range(self._slots.count), key=lambda slot: (shared[slot], slot in free))
            slot = best if best in free else min(free, key=lambda slot: (self._used[slot], slot))
            self._slots.trim(slot, shared[slot])
            self._count += 1
            self._used[slot] = self._count
            self._active[slot] = ticket

    def _shared(self, ticket: Ticket) -> list[int]:
        """How many tokens each slot has in common with a request, and the request needs no more of."""
        if ticket.writer.asked.scores_prompt:
            return [0] * self._slots.count
        # The last token is read anew: its logits are needed.
        wanted = ticket.writer.tokens[:-1]
        return [common(held, wanted) for held in self._slots.tokens]

    def _read(self) -> None:
        """Read a part of the prompt that came first, after what another slot holds of it by now is copied."""
        reading = [slot for slot in self._active if self._left(slot) > 1]
        if not reading:
            return
        slot = min(reading, key=self._used.__getitem__)
        ticket, held = self._active[slot], len(self._slots.tokens[slot])
        shared = self._shared(ticket)
        best = max(range(self._slots.count), key=shared.__getitem__)
        if shared[best] - held >= WORTH_COPYING:
            self._slots.copy(best, slot, shared[best])
            held = shared[best]
        if self._left(slot) == 1:
            return  # a step takes the last token
        part = ticket.writer.tokens[held : held + PART]
        scores = ticket.writer.asked.scores_prompt
        try:
            logits = self._slots.extend(slot, part, len(part) if scores else 1)
            for piece in ticket.writer.scored(held, logits) if scores else ():
                ticket.put(piece)
        except DovetailError as error:
            self._leave(slot, error)
            return
        if self._left(slot) == 0:
            self._take(slot, logits[-1])

    def _step(self) -> None:
        """One token for each that decodes."""
        ready = {slot: t.writer.tokens[-1] for slot, t in self._active.items() if self._left(slot) == 1}
        if not ready:
            return
        are_likeliest = self._slots.chooses and all(self._active[slot].writer.takes_likeliest for slot in ready)
        found = self._slots.likeliest(ready) if are_likeliest else self._slots.step(ready)
        for slot, one in found.items():
            self._take(slot, one)

    def _left(self, slot: int) -> int:
        """Tokens of a request that its slot does not hold yet."""
        return len(self._active[slot].writer.tokens) - len(self._slots.tokens[slot])

    def _take(self, slot: int, found: Array | int) -> None:
        ticket = self._active[slot]
        try:
            piece = ticket.writer.take(found)
        except Exception as error:  # one request's constraint is no harm to the others
            self._leave(slot, _told(error))
            return
        ticket.put(piece)
        if piece.end:
            with self._changed:
                del self._active[slot]

    def _leave(self, slot: int, error: DovetailError) -> None:
        with self._changed:
            self._active.pop(slot).put(error)

    def _end_all(self, error: DovetailError) -> None:
        for ticket in (*self._active.values(), *self._waiting):
            ticket.put(error)
        self._active.clear()
        self._waiting.clear()


def _late() -> ServiceError:
    return ServiceError("the request took too long", status=504, hint="ask for fewer tokens, or allow more time")


def _told(error: Exception) -> DovetailError:
    if isinstance(error, DovetailError):
        return error
    what = "there is not enough memory" if isinstance(error, MemoryError) else f"{type(error).__name__}: {error}"
    return ServiceError(f"the model did not run: {what}", status=500, hint="see the server's messages")


__all__ = ["Engine", "Ticket"]
