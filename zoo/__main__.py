"""Real models, judged: `make models`. Arguments are parts of their names; without any, all are run.

dovetail and onnxruntime run each model; both are measured against the float64 reference, and our typical error may be
at most twice theirs (zoo/judge.py). Both are timed in turns. A model that does not run, is wrong, is slower than 0.9 of
onnxruntime, or runs a step on the host that zoo/host_steps.py does not name, makes the exit status 1.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys

from zoo import alone, kept, table
from zoo.fetch import ROOT
from zoo.findings import Findings
from zoo.judged import chosen

PAGE = ROOT / "docs" / "models.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts of names; a model runs if its name has one")
    parser.add_argument("--target", default="cpu", help="what to compile for (cpu)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both runtimes (all)")
    parser.add_argument("--details", action="store_true", help="also print operators, fusions and every error")
    parser.add_argument("--page", action="store_true", help="write docs/models.md, also of what earlier runs found")
    parser.add_argument("--resume", action="store_true", help="do not run again what this build passed already")
    options = parser.parse_args()
    names = [name for name, _ in chosen([], options.target, options.threads)]
    picked = [name for name, _ in chosen(options.parts, options.target, options.threads)]
    build, known = kept.build(), kept.read()
    found: list[Findings] = []
    print(table.header(), flush=True)
    for name in picked:
        findings = known.get(name) if options.resume else None
        if findings is None or findings.build != build or not findings.passed:
            findings = alone.judge(name, options.target, options.threads)
        if findings is None:
            continue
        findings = findings.made_by(build)
        found.append(findings)
        print(table.line(findings), flush=True)
        if options.details or findings.error or findings.wrong:
            print(findings, flush=True)
        kept.add(findings, names)
        if options.page:
            _write_page(names, options.threads)
    if options.page:
        _write_page(names, options.threads)
    print(table.totals(found))
    return int(not all(f.passed for f in found))


def _write_page(names: list[str], threads: int) -> None:
    """The page as far as models are judged: a run that is interrupted loses nothing."""
    known = kept.read()
    listed = [known[name] for name in names if name in known]
    missing = [name for name in names if name not in known]
    PAGE.write_text(table.page(listed, platform.machine(), threads, missing), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
