"""Every operator of torch's own database: `make torch`. Arguments are patterns of names."""

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
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.torch_operators.page import as_page, as_text
from tests.torch_operators.samples import Judged, full_name, judge, operators

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "torch-operators.md"
DTYPES = (torch.float32, torch.float64)


def main() -> int:
    if "--gradients" in sys.argv:
        from tests.torch_operators import gradients  # a judge of its own

        return gradients.main([word for word in sys.argv[1:] if word != "--gradients"])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", help="regular expressions; an operator runs if one is found in its name")
    parser.add_argument("--samples", type=int, default=4, help="how many samples of an operator")
    parser.add_argument("--dtypes", default="float32,float64")
    parser.add_argument("--every", type=int, default=1, help="every n-th operator alone")
    parser.add_argument("--together", type=int, default=20, help="how many operators torch traces as one program")
    parser.add_argument("--seconds", type=int, default=600, help="the most that one operator may take")
    parser.add_argument("--rows", type=Path, help="a file of verdicts: new ones are added, and the page is of them all")
    options = parser.parse_args()
    dtypes = [getattr(torch, name) for name in options.dtypes.split(",")]
    everything = operators()
    chosen = [
        o for o in everything if not options.patterns or any(re.search(p, full_name(o)) for p in options.patterns)
    ]
    found: list[Judged] = []
    picked = chosen[:: options.every]
    earlier = _read(options.rows) if options.rows is not None and options.rows.exists() else []
    for start in range(0, len(picked), options.together):
        group = picked[start : start + options.together]
        rows, ended = forked(group, dtypes, options.samples, options.seconds)
        if not ended:
            rows = [row for op in group for row in alone(op, dtypes, options.samples, options.seconds)]
        found += rows
        if options.rows is not None:
            with options.rows.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(row)) + "\n" for row in rows)
    names = {full_name(op): at for at, op in enumerate(everything)}
    latest = {(r.op, r.dtype, r.sample): r for r in (*earlier, *found)}
    together = sorted(latest.values(), key=lambda r: (names[r.op], r.dtype, r.sample))
    if {row.op for row in together} == {full_name(op) for op in everything if op.supported_dtypes("cpu") & set(dtypes)}:
        PAGE.write_text(as_page(together, earlier=len(together) - len(found)), encoding="utf-8")
    print(as_text(found))
    return int(any(row.verdict in ("wrong", "error") for row in found))


def _read(path: Path) -> list[Judged]:
    return [Judged(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def alone(op: Any, dtypes: Sequence[Any], samples: int, seconds: int) -> list[Judged]:
    """The verdicts on one operator, after a process that judged several has crashed or hung."""
    rows, ended = forked([op], dtypes, samples, seconds)
    return rows if ended else [*rows, Judged(full_name(op), "", len(rows), "error", "it crashed or took too long")]


def forked(ops: Sequence[Any], dtypes: Sequence[Any], samples: int, seconds: int) -> tuple[list[Judged], bool]:
    """The verdicts on some operators from a process of their own, and whether it ended well."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        child = os.fork()
        if child == 0:
            _judge_here(ops, dtypes, samples, seconds, path)
        _, status = os.waitpid(child, 0)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Judged(**json.loads(line)) for line in lines if line.endswith("}")], status == 0


def _judge_here(ops: Sequence[Any], dtypes: Sequence[Any], samples: int, seconds: int, path: Path) -> None:
    status = 1
    try:
        signal.alarm(seconds)
        torch.set_num_threads(1)
        with path.open("w", encoding="utf-8") as file:
            for row in judge(ops, dtypes, samples):
                file.write(json.dumps(asdict(row)) + "\n")
                file.flush()
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    os.environ.setdefault("DOVETAIL_CACHE", "off")
    sys.exit(main())
