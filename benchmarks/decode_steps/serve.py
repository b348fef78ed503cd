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
from typing import Any, Protocol

MODULES = {"exact": "ours", "fast": "ours", "llama.cpp": "in_llama_cpp", "llama.cpp fa": "in_llama_cpp"}
FIRST = list(range(1, 9))
"""The prompt of the first token."""
LEAST_RUNS = 3


class Decoder(Protocol):
    """One sequence of a model."""

    def extend(self, tokens: Sequence[int]) -> object:
        """Take tokens in, and compute the logits after the last."""
        ...

    def trim(self, count: int) -> None:
        """Forget all tokens but the first ones."""
        ...


class Readable(Decoder, Protocol):
    """One whose logits are arrays."""

    def logits(self, tokens: Sequence[int]) -> Any:
        """The logits after the last of some more tokens."""
        ...


def drawn(count: int) -> list[int]:
    """Tokens of a prompt."""
    return [(7919 * i + 13) % 40000 + 100 for i in range(count)]


def resident(word: str) -> int:
    """Bytes of a line of /proc/self/status."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next((int(line.split()[1]) << 10 for line in file if line.startswith(word)), 0)


class Seat:
    """What answers the lines."""

    def __init__(self, peer: str, path: str, threads: int, clock: Callable[[], float]) -> None:
        self.peer, self.path, self.threads, self.clock = peer, path, threads, clock
        self.held = 0

    def start(self) -> dict[str, Any]:
        """Load and give the first token: seconds and processor time of both, and what the process holds."""
        module: Any = importlib.import_module(MODULES[self.peer])
        before = resident("RssAnon")
        started, spent = time.perf_counter(), time.process_time()
        self.decoder: Readable = module.load(self.path, self.threads, self.peer)
        self.decoder.extend(FIRST)
        return {
            "load": time.perf_counter() - started,
            "load_cpu": time.process_time() - spent,
            "anonymous": resident("RssAnon") - before,
            "resident": resident("VmRSS"),
            "peak": resident("VmHWM"),
        }

    def step(self, cached: str, seconds: str) -> dict[str, Any]:
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

    def prompt(self, length: str) -> dict[str, Any]:
        """A prompt from nothing."""
        self.decoder.trim(0)
        self.held = 0
        started = self.clock()
        self.decoder.extend(drawn(int(length)))
        return {"runs": [self.clock() - started]}

    def scores(self, path: str, *tokens: str) -> dict[str, Any]:
        """Write the logits after each token of a text, one token at a time."""
        self.decoder.trim(0)
        self.held = 0
        with open(path, "wb") as file:
            for token in tokens:
                file.write(self.decoder.logits([int(token)]).astype("float32").tobytes())
        return {}

    def greedy(self, count: str, *tokens: str) -> dict[str, Any]:
        """The likeliest tokens after some."""
        self.decoder.trim(0)
        self.held = 0
        found: list[int] = []
        row = self.decoder.logits([int(token) for token in tokens])
        for _ in range(int(count)):
            found.append(int(row.argmax()))
            row = self.decoder.logits(found[-1:])
        return {"tokens": found}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    peer, path, threads, clock = sys.argv[1:]
    seat = Seat(peer, path, int(threads), {"wall": time.perf_counter, "cpu": time.process_time}[clock])
    for line in sys.stdin:
        word, *given = line.split()
        try:
            answer: dict[str, Any] = getattr(seat, word)(*given)
        except Exception as error:  # a peer's failure is an answer, whatever its type
            answer = {"refused": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
