"""Groups of operators judged in processes of their own, and files of verdicts that a later run adds to."""

# torch is optional, and its internals have no types.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.torch_operators.samples import Judged, full_name

Judge = Callable[[Sequence[Any]], Iterable[Judged]]


def chosen(ops: Sequence[Any], patterns: Sequence[str]) -> list[Any]:
    """The operators in whose name a pattern is found; without patterns all."""
    return [op for op in ops if not patterns or any(re.search(p, full_name(op)) for p in patterns)]


def in_groups(ops: Sequence[Any], judge: Judge, together: int, seconds: int) -> Iterator[list[Judged]]:
    """The verdicts on groups of operators; of a group that crashes or hangs, each operator is judged alone."""
    for start in range(0, len(ops), together):
        group = ops[start : start + together]
        rows, ended = _forked(group, judge, seconds)
        yield rows if ended else [row for op in group for row in _alone(op, judge, seconds)]


def _alone(op: Any, judge: Judge, seconds: int) -> list[Judged]:
    rows, ended = _forked([op], judge, seconds)
    return rows if ended else [*rows, Judged(full_name(op), "", len(rows), "error", "it crashed or took too long")]


def _forked(ops: Sequence[Any], judge: Judge, seconds: int) -> tuple[list[Judged], bool]:
    """The verdicts on some operators from a process of their own, and whether it ended well."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        child = os.fork()
        if child == 0:
            _judge_here(ops, judge, seconds, path)
        _, status = os.waitpid(child, 0)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Judged(**json.loads(line)) for line in lines if line.endswith("}")], status == 0


def _judge_here(ops: Sequence[Any], judge: Judge, seconds: int, path: Path) -> None:
    status = 1
    try:
        signal.alarm(seconds)
        torch.set_num_threads(1)
        with path.open("w", encoding="utf-8") as file:
            for row in judge(ops):
                file.write(json.dumps(asdict(row)) + "\n")
                file.flush()
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


def read_rows(path: Path | None) -> list[Judged]:
    """The verdicts of earlier runs."""
    if path is None or not path.exists():
        return []
    return [Judged(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def add_rows(path: Path | None, rows: Iterable[Judged]) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in rows)


def latest(ops: Sequence[Any], *runs: Iterable[Judged]) -> list[Judged]:
    """The last verdict on each sample, in the order of the operators."""
    places = {full_name(op): at for at, op in enumerate(ops)}
    found = {(r.op, r.dtype, r.sample): r for run in runs for r in run}
    return sorted(found.values(), key=lambda r: (places[r.op], r.dtype, r.sample))
