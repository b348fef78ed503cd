"""How pytest-xdist spreads tests over processes: files in parallel first, then files with serial tests in one process.

A test is serial (`@pytest.mark.serial`) if load disturbs it or it disturbs others: it measures, starts pools of several
threads or drives a browser. One serial test makes its whole file serial.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from tests.tiers import LEFT_OUT, LONG, SLOW, mean_seconds

MARK = "mark.serial"
"""What a file with serial tests has in it."""
MOST = 200
"""Tests of one file that a process gets at once. A longer file is cut, so that all processes end together."""


SHORT = LONG / 20
"""Seconds that a test takes of which nothing is known."""
SAME = {
    "tests/test_process_state.py": "tests/test_rooms.py",
    "tests/traps/test_tests.py": "tests/traps/test_defences.py",
    "tests/targets/cuda/test_conformance.py": "tests/conformance/test_quick.py",
}
"""Files that join another one in its process: both look at what takes seconds to parse or to load."""
WHOLE = ("tests/conformance/test_quick.py",)
"""Files that are never cut: each process that runs a part would load the same suite, for ten seconds."""
SPREAD = {"tests/targets/cuda/test_ops_on_device.py": 8}
"""Files of long tests that most machines skip, so that nothing is known of them: tests that a process gets at once."""


class Worker(Protocol):
    """A process that runs tests, as pytest-xdist has it. It holds its last test until it gets more or shuts down."""

    @property
    def shutting_down(self) -> bool: ...
    def shutdown(self) -> None: ...
    def send_runtest_some(self, indices: Sequence[int]) -> None: ...


class SerialLast:
    """What pytest-xdist calls a scheduler. Tests are indices of the collection, which is the same in all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.expected = len(config.getoption("tx") or ())
        self.collection: list[str] | None = None
        self.collections: dict[Worker, list[str]] = {}
        self.pending: dict[Worker, dict[int, None]] = {}
        self.parallel: deque[list[int]] = deque()
        self.serial: deque[list[int]] = deque()
        self._is_serial: dict[str, bool] = {}
        self._slow = frozenset(SLOW.read_text(encoding="utf-8").split())
        self._seconds = mean_seconds()

    @property
    def nodes(self) -> list[Worker]:
        return list(self.pending)

    @property
    def collection_is_completed(self) -> bool:
        return len(self.collections) >= self.expected

    @property
    def tests_finished(self) -> bool:
        waiting = self.parallel or self.serial or any(len(tests) > 1 for tests in self.pending.values())
        return self.collection_is_completed and not waiting

    @property
    def has_pending(self) -> bool:
        return bool(self.parallel or self.serial or any(self.pending.values()))

    def add_node(self, node: Worker) -> None:
        self.pending[node] = {}

    def add_node_collection(self, node: Worker, collection: Sequence[str]) -> None:
        self.collections[node] = list(collection)

    def schedule(self) -> None:
        """Begin once every worker has collected; after that, give work to a worker that replaces a crashed one."""
        if self.collection is None:
            first, *others = self.collections.values()
            for other in others:
                if other != first:
                    self._refuse(first, other)
                    return
            self.collection = first
            self._fill(range(len(first)))
        for node in self.nodes:
            self._feed(node)

    def mark_test_complete(self, node: Worker, item_index: int, duration: float = 0) -> None:
        self.pending[node].pop(item_index, None)
        self._feed(node)

    def remove_node(self, node: Worker) -> str | None:
        """A worker has ended. The result is the test that brought it down, if one did; it is not tried again."""
        crashed, *rest = [*self.pending.pop(node), None]
        left = [index for index in rest if index is not None]
        self._fill(left)
        for other in self.nodes:
            self._feed(other)
        return None if crashed is None or self.collection is None else self.collection[crashed]

    def mark_test_pending(self, item: str) -> None:
        raise NotImplementedError

    def remove_pending_tests_from_node(self, node: Worker, indices: Sequence[int]) -> None:
        raise NotImplementedError

    def is_serial(self, file: str) -> bool:
        """Whether tests of this file want the machine for themselves."""
        if file not in self._is_serial:
            path = Path(self.config.rootpath) / file
            self._is_serial[file] = path.is_file() and MARK in path.read_text(encoding="utf-8")
        return self._is_serial[file]

    def _fill(self, indices: Iterable[int]) -> None:
        """Add tests to the queues: pieces of files, those that take longest first."""
        assert self.collection is not None
        files: dict[str, list[int]] = {}
        for index in indices:
            file = self.collection[index].partition("::")[0]
            files.setdefault(SAME.get(file, file), []).append(index)
        pieces: list[tuple[str, list[int]]] = []
        for file, tests in files.items():
            most = len(tests) if file in WHOLE else SPREAD.get(file, MOST)
            pieces += [(file, tests[at : at + most]) for at in range(0, len(tests), most)]
        for file, tests in sorted(pieces, key=lambda piece: -sum(map(self._weight, piece[1]))):
            (self.serial if self.is_serial(file) else self.parallel).append(tests)

    def _weight(self, index: int) -> float:
        """Seconds that a test takes, roughly: files that take long come first, so that all processes end together."""
        assert self.collection is not None
        test = self.collection[index].partition("[")[0]
        known = self._seconds.get(test.partition("::")[0])
        if known is not None:
            return known
        return LONG if test in self._slow or test.startswith(LEFT_OUT) else SHORT

    def _feed(self, node: Worker) -> None:
        """Give a worker more tests before it runs out; end it, or let it wait, where there are none for it."""
        if node.shutting_down or len(self.pending[node]) > 2:
            return
        alive = [other for other in self.nodes if other is not node]
        if self.parallel:
            self._send(node, self.parallel.popleft())
        elif not self.serial or any(not other.shutting_down for other in alive):
            node.shutdown()
        elif not alive:
            self._send(node, self.serial.popleft())

    def _send(self, node: Worker, tests: list[int]) -> None:
        self.pending[node].update(dict.fromkeys(tests))
        node.send_runtest_some(tests)

    def _refuse(self, first: list[str], other: list[str]) -> None:
        """Names of tests must not depend on the process."""
        differing = sorted(set(first) ^ set(other))[:10]
        said = "workers collect different tests:\n  " + "\n  ".join(differing or ["their order differs"])
        report = pytest.CollectReport("collection", "failed", said, [])
        self.config.hook.pytest_collectreport(report=report)
