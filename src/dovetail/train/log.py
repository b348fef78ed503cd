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
        """The lines of the file that are whole."""
        found: list[dict[str, Any]] = []
        try:
            for text in self.path.read_text(encoding="utf-8").splitlines():
                line = json.loads(text)
                found.append({"step": int(line["step"]), **line})
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError):
            return found  # a kill in the middle of a line ends what counts
        return found

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

    def __call__(self, told: Metrics) -> None:
        line = {
            "step": told.step,
            "loss": told.loss if math.isfinite(told.loss) else None,
            "norm": told.norm if math.isfinite(told.norm) else None,
            "rate": told.rate,
            "skipped": told.skipped,
            "seconds": round(time.monotonic() - self._began, 3),
        }
        assert self._file is not None, "the log is a context"
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


__all__ = ["Log"]
