"""The log of a run: one line of JSON for each step, in a file that a resumed run goes on with."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from dovetail.errors import LoadError
from dovetail.ir.whole_file import write_whole
from dovetail.train.trainer import Metrics


class Log:
    """Call it with what each step tells. Lines of steps after `after`, from a run that was killed, are dropped."""

    def __init__(self, path: str | os.PathLike[str], *, after: int = 0) -> None:
        self.path = Path(path)
        self._began = time.monotonic()
        kept = [line for line in self._lines() if line["step"] <= after] if after else []
        write_whole(self.path, [(json.dumps(line) + "\n").encode() for line in kept])
        self._file: IO[str] | None = None

    def _lines(self) -> list[dict[str, Any]]:
        """Return the lines of the file that are whole."""
        lines: list[dict[str, Any]] = []
        try:
            for text in self.path.read_text(encoding="utf-8").splitlines():
                line = json.loads(text)
                lines.append({"step": int(line["step"]), **line})
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError):
            return lines  # a kill in the middle of a line ends what counts
        return lines

    def __enter__(self) -> Log:
        try:
            self._file = open(self.path, "a", encoding="utf-8")
        except OSError as error:
            raise LoadError(f"{self.path} cannot be written: {error.strerror}", hint="check the path") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def __call__(self, metrics: Metrics) -> None:
        line = {
            "step": metrics.step,
            "loss": metrics.loss if math.isfinite(metrics.loss) else None,
            "norm": metrics.norm if math.isfinite(metrics.norm) else None,
            "rate": metrics.rate,
            "skipped": metrics.skipped,
            "seconds": round(time.monotonic() - self._began, 3),
        }
        assert self._file is not None, "the log is a context"
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


__all__ = ["Log"]
