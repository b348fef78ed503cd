"""The worker of a host: `python -m dovetail.cli.worker MEMBER ARGUMENT …`, started by its parent alone."""

from __future__ import annotations

import os
import sys

from dovetail.cli.main import main
from dovetail.errors import DovetailError
from dovetail.runtime.hosts import Reporter


def work() -> None:
    """Meet the other workers, run the command, and end when all of them are done."""
    _keep_stdout()
    reporter = Reporter(sys.argv[1])
    mine = reporter.member
    try:
        from dovetail.targets.xla.hosts import join, leave  # JAX is imported with it

        join(mine.coordinator, mine.hosts, mine.rank, timeout=mine.timeout, joining=mine.joining)
    except DovetailError as error:
        reporter.failed(error)
        os._exit(error.exit_code)
    code = main(sys.argv[2:], reporter)
    sys.stdout.flush()
    if code == 0:
        leave()
    # JAX would wait for its peers here, or abort.
    os._exit(code)


def _keep_stdout() -> None:
    """Libraries of JAX print to the descriptor of stdout, which is for what the command answers."""
    own = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    sys.stdout = os.fdopen(own, "w", encoding="utf-8")


if __name__ == "__main__":
    work()
