"""Every network of the export zoo: `make torch-zoo`. Arguments are patterns of names."""

# torch is optional, and its internals have no types.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("DOVETAIL_CACHE", "off")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from dovetail.frontends.torch.load import import_module
from tests.torch_networks.every import ALL, full_name
from tests.torch_networks.judge import Judged, judge
from tests.torch_networks.network import Case
from tests.torch_networks.page import COMPILED, as_page, as_part, as_text
from tests.torch_networks.through_compile import Compiled, judge_compiled
from tests.torch_networks.torchvision_models import declare_operators

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "torch-networks.md"
TOO_LONG = (signal.SIGPROF, signal.SIGALRM)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", help="regular expressions; a network runs if one is found in its name")
    parser.add_argument("--seconds", type=int, default=300, help="the most CPU time that one network may take")
    parser.add_argument("--rows", type=Path, help="a file of verdicts: those in it are not judged again")
    parser.add_argument(
        "--page", action="store_true", help="judge nothing, and write the page of the rows that are known"
    )
    parser.add_argument(
        "--through", choices=("export", "compile"), default="export", help="torch.export or torch.compile"
    )
    options = parser.parse_args()
    through: Through = EXPORT if options.through == "export" else COMPILE
    chosen = [c for c in ALL if not options.patterns or any(re.search(p, full_name(c)) for p in options.patterns)]
    known = _known(options.rows, through)
    if options.page:
        through.write([known[full_name(c)] for c in ALL if full_name(c) in known])
        return 0
    holds = _imported()
    found: list[Any] = []
    for case in chosen:
        row = known.get(full_name(case))
        if row is None:
            row = alone(case, options.seconds, through)
            print(f"{row.verdict:12} {row.name:40} {row.seconds:6.1f} s  {through.told(row)}  {row.detail}", flush=True)
            if options.rows is not None:
                with options.rows.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
        found.append(row)
    del holds
    if len(chosen) == len(ALL):
        through.write(found)
    print(as_text(found))
    return int(any(row.verdict in ("wrong", "error", "recompiled") for row in found))


@dataclass(frozen=True, slots=True)
class Through:
    """A way from a module to a program: its judge, and the part of the page that tells of it."""

    row: Callable[..., Any]
    judge: Callable[[Case], Any]
    told: Callable[[Any], str]
    write: Callable[[list[Any]], object]


def _write_exported(rows: list[Judged]) -> None:
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    _, heading, compiled = old.partition(COMPILED)
    page = as_page(rows, len(ALL))
    PAGE.write_text(f"{page}\n{heading}{compiled}" if heading else page, encoding="utf-8")


def _write_compiled(rows: list[Compiled]) -> None:
    exported = PAGE.read_text(encoding="utf-8").partition(COMPILED)[0].rstrip("\n")
    PAGE.write_text(f"{exported}\n\n{as_part(rows, [full_name(c) for c in ALL])}", encoding="utf-8")


EXPORT = Through(Judged, judge, lambda row: f"{row.found} of {row.attention}", _write_exported)
COMPILE = Through(
    Compiled,
    judge_compiled,
    lambda row: f"{row.graphs} graphs for {row.calls} {', '.join(row.fallbacks)}",
    _write_compiled,
)


def _known(path: Path | None, through: Through) -> dict[str, Any]:
    """Verdicts of an earlier run that was stopped."""
    lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
    return {row.name: row for row in (through.row(**json.loads(line)) for line in lines)}


def _imported() -> object:
    """Import the packages once, for all processes that are forked; what it returns must be held."""
    holds = declare_operators()
    for package in ("transformers", "timm"):
        try:
            __import__(package)
        except ImportError:
            print(f"{package} is not installed")
    torch.set_num_threads(1)
    import_module(torch.nn.Linear(2, 2).eval(), (torch.zeros(1, 2),))  # torch.export imports much when it is first used
    return holds


def alone(case: Case, seconds: int, through: Through = EXPORT) -> Any:
    """The verdict on a network from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row"
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.setitimer(signal.ITIMER_PROF, seconds)
                signal.alarm(4 * seconds)  # it may be waiting
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                path.write_text(json.dumps(asdict(through.judge(case))), encoding="utf-8")
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if path.exists() and status == 0:
            return through.row(**json.loads(path.read_text(encoding="utf-8")))
    ended = "it took too long" if os.WIFSIGNALED(status) and os.WTERMSIG(status) in TOO_LONG else "it crashed"
    return through.row(full_name(case), case.kind, "error", ended)


if __name__ == "__main__":
    sys.exit(main())
