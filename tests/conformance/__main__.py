"""The whole suite: `make conformance`. Arguments are patterns of names; without any, all cases are run."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
from pathlib import Path

from dovetail.adapters.onnx_backend import DovetailBackend
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
    parser.add_argument("--simulated", action="store_true", help="without a GPU: kernels run in NumPy and become PTX")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds after which no other case is run")
    parser.add_argument("--brief", action="store_true", help="leave out the tables")
    options = parser.parse_args()
    begun = time.perf_counter()
    everything = cases(backend=_simulated() if options.simulated else backend_of(options.target))
    loaded = time.perf_counter()
    chosen = [c for c in everything if not options.patterns or any(re.search(p, c.name) for p in options.patterns)]
    # Whole networks take longest: they start first, so that processes end together.
    chosen.sort(key=lambda case: case.kind != "real")
    found = list(
        outcomes(chosen, processes=max(1, options.processes), most_seconds=options.seconds, within=options.within)
    )
    ended = time.perf_counter()
    order = {case.name: at for at, case in enumerate(everything)}
    found.sort(key=lambda o: order[o.name])
    own = options.target == "cpu" and not options.simulated
    if chosen and len(found) == len(everything) and not options.no_page and own:
        PAGE.write_text(as_page(found), encoding="utf-8")
        README.write_text(SUMMARY.sub(summary(found), README.read_text(encoding="utf-8")), encoding="utf-8")
        QUICK.write_text("".join(f"{line}\n" for line in quick(found)), encoding="utf-8")
    print(as_text(found, verbose=options.verbose, tables=not options.brief))
    print(f"suite loaded in {loaded - begun:.0f} s, {len(found)} of {len(chosen)} cases in {ended - loaded:.0f} s")
    return int(any(o.verdict in ("wrong", "error") for o in found))


def _simulated() -> type[DovetailBackend]:
    """The backend of a GPU without one, imported on use."""
    from tests.targets.cuda.backend import AssembledBackend

    return AssembledBackend


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main())
