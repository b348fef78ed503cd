"""The whole suite: `make conformance`. Arguments are patterns of names; without any, all cases are run."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from tests.conformance.page import SUMMARY, as_page, as_text, quick, summary
from tests.conformance.suite import ROOT, backend_of, cases
from tests.conformance.workers import MOST_SECONDS, outcomes

PAGE = ROOT / "docs" / "conformance.md"
README = ROOT / "README.md"
QUICK = Path(__file__).with_name("quick.txt")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", help="regular expressions; a case runs if one is found in its name")
    parser.add_argument("-v", "--verbose", action="store_true", help="say why a case is unsupported")
    parser.add_argument("--processes", type=int, default=_cores(), help="how many cases run at once")
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS, help="the most that one case may take")
    parser.add_argument("--no-page", action="store_true", help="do not write the page and the quick part")
    parser.add_argument("--target", default="cpu", help="another target, which writes no page")
    options = parser.parse_args()
    everything = cases(backend=backend_of(options.target))
    chosen = [c for c in everything if not options.patterns or any(re.search(p, c.name) for p in options.patterns)]
    found = list(outcomes(chosen, processes=max(1, options.processes), most_seconds=options.seconds))
    order = {case.name: at for at, case in enumerate(everything)}
    found.sort(key=lambda o: order[o.name])
    if chosen and len(chosen) == len(everything) and not options.no_page and options.target == "cpu":
        PAGE.write_text(as_page(found), encoding="utf-8")
        README.write_text(SUMMARY.sub(summary(found), README.read_text(encoding="utf-8")), encoding="utf-8")
        QUICK.write_text("".join(f"{line}\n" for line in quick(found)), encoding="utf-8")
    print(as_text(found, verbose=options.verbose))
    return int(any(o.verdict in ("wrong", "error") for o in found))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main())
