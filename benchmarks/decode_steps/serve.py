"""One peer in a process of its own: loads a file at "start", and runs prompts and tokens when its turn comes.

`python serve.py PEER FILE THREADS CLOCK` reads `start`, `step CACHED SECONDS`, `prompt LENGTH`, `scores FILE TOKEN …`
and `greedy COUNT TOKEN …` from stdin, and answers each with a line of JSON. It imports nothing of dovetail: the
interpreter of a peer needs no more than the peer.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

MODULES = {
    "exact": "ours",
    "exact f16": "ours",
    "fast": "ours",
    "llama.cpp": "in_llama_cpp",
    "llama.cpp fa": "in_llama_cpp",
    "openvino": "in_openvino_genai",
    "openvino paged": "in_openvino_genai",
    "onnxruntime": "in_onnxruntime_genai",
}
FIRST = list(range(1, 9))
"""The prompt of the first token."""
LEAST_RUNS = 3
GENERATED = 16
"""Tokens after a prompt that are timed where a cache cannot be cut."""

Clock = Callable[[], float]
Answer = dict[str, Any]


class Decoder(Protocol):
    """One sequence of a model, which can be cut."""

    def extend(self, tokens: Sequence[int]) -> object:
        """Take tokens in, and compute the logits after the last."""
        ...

    def logits(self, tokens: Sequence[int]) -> Any:
        """The same as an array."""
        ...

    def trim(self, count: int) -> None:
        """Forget all tokens but the first ones."""
        ...


class Generator(Protocol):
    """A peer that takes a text and generates: its cache cannot be cut."""

    precision: str
    """What it was told to compute in, if not its own choice."""

    def ticks(self, tokens: Sequence[int], count: int, clock: Clock) -> list[float]:
        """What the clock says at each of the likeliest tokens after some."""
        ...

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The likeliest tokens after some."""
        ...


def drawn(count: int) -> list[int]:
    """Tokens of a prompt."""
    return [(7919 * i + 13) % 40000 + 100 for i in range(count)]


def resident(word: str) -> int:
    """Bytes of a line of /proc/self/status."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next((int(line.split()[1]) << 10 for line in file if line.startswith(word)), 0)


class Decoding:
    """The work of a peer whose sequence can be cut."""

    def __init__(self, decoder: Decoder, clock: Clock) -> None:
        self.decoder, self.clock = decoder, clock
        self.held = 0
        decoder.extend(FIRST)

    def step(self, cached: str, seconds: str) -> Answer:
        """Single tokens after as many cached ones, for so long."""
        after = int(cached)
        if self.held != after:
            self.decoder.trim(0)
            self.decoder.extend(drawn(after))
            self.held = after
        runs: list[float] = []
        until = time.perf_counter() + float(seconds)
        while len(runs) <= LEAST_RUNS or time.perf_counter() < until:
            self.decoder.trim(after)
            started = self.clock()
            self.decoder.extend([7])
            runs.append(self.clock() - started)
        return {"runs": runs[1:]}

    def prompt(self, length: str) -> Answer:
        """A prompt from nothing."""
        self._forget()
        started = self.clock()
        self.decoder.extend(drawn(int(length)))
        return {"runs": [self.clock() - started]}

    def scores(self, path: str, *tokens: str) -> Answer:
        """Write the logits after each token of a text, one token at a time."""
        self._forget()
        with open(path, "wb") as file:
            for token in tokens:
                file.write(self.decoder.logits([int(token)]).astype("float32").tobytes())
        return {}

    def greedy(self, count: str, *tokens: str) -> Answer:
        """The likeliest tokens after some."""
        self._forget()
        found: list[int] = []
        row = self.decoder.logits([int(token) for token in tokens])
        for _ in range(int(count)):
            found.append(int(row.argmax()))
            row = self.decoder.logits(found[-1:])
        return {"tokens": found}

    def _forget(self) -> None:
        self.decoder.trim(0)
        self.held = 0


class Generating:
    """The work of a peer that only generates."""

    def __init__(self, generator: Generator, clock: Clock) -> None:
        self.generator, self.clock = generator, clock
        generator.ticks(FIRST, 1, clock)

    def step(self, cached: str, seconds: str) -> Answer:
        """The tokens that follow as many cached ones: 16 of them, whatever time they take."""
        ticks = self.generator.ticks(drawn(int(cached)), GENERATED + 1, self.clock)
        return {"runs": [late - soon for soon, late in pairwise(ticks)]}

    def prompt(self, length: str) -> Answer:
        """A prompt from nothing, up to its first token."""
        started = self.clock()
        return {"runs": [self.generator.ticks(drawn(int(length)), 1, self.clock)[0] - started]}

    def greedy(self, count: str, *tokens: str) -> Answer:
        """The likeliest tokens after some."""
        return {"tokens": self.generator.greedy([int(token) for token in tokens], int(count))}


class Seat:
    """What answers the lines."""

    def __init__(self, peer: str, path: str, threads: int, clock: Clock) -> None:
        self.peer, self.path, self.threads, self.clock = peer, path, threads, clock
        self.work: Decoding | Generating | None = None

    def answer(self, line: str) -> Answer:
        """The answer to a line; a peer's failure is one, whatever its type."""
        word, *given = line.split()
        try:
            return self.start() if word == "start" else getattr(self.work, word)(*given)
        except Exception as error:
            return {"refused": f"{type(error).__name__}: {str(error)[:300]}"}

    def start(self) -> Answer:
        """Load and give the first token: seconds and processor time of both, and what the process holds."""
        module: Any = importlib.import_module(MODULES[self.peer])
        before = resident("RssAnon")
        started, spent = time.perf_counter(), time.process_time()
        loaded = module.load(self.path, self.threads, self.peer)
        generates = hasattr(loaded, "ticks")
        self.work = Generating(loaded, self.clock) if generates else Decoding(loaded, self.clock)
        return {
            "load": time.perf_counter() - started,
            "load_cpu": time.process_time() - spent,
            "anonymous": resident("RssAnon") - before,
            "resident": resident("VmRSS"),
            "peak": resident("VmHWM"),
            "precision": loaded.precision if generates else "",
        }


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    peer, path, threads, clock = sys.argv[1:]
    seat = Seat(peer, path, int(threads), {"wall": time.perf_counter, "cpu": time.process_time}[clock])
    for line in sys.stdin:
        print(json.dumps(seat.answer(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
