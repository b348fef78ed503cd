"""The whole suite: `make conformance`. Arguments are patterns of names; without any, all cases are run."""

from __future__ import annotations

import argparse
import collections
import re
from pathlib import Path

from tests.conformance.suite import Outcome, cases, judge

ROOT = Path(__file__).resolve().parents[2]
VERDICTS = ("passed", "wrong", "unsupported", "error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("-v", "--verbose", action="store_true", help="say why a case did not pass")
    options = parser.parse_args()
    chosen = [
        c
        for c in cases(ROOT / "build" / "onnx")
        if not options.patterns or any(re.search(p, c.name) for p in options.patterns)
    ]
    outcomes = [judge(case) for case in chosen]
    show(outcomes, options.verbose)


def show(outcomes: list[Outcome], verbose: bool) -> None:
    for outcome in outcomes:
        if outcome.verdict != "passed" and (verbose or outcome.verdict != "unsupported"):
            why = outcome.why.strip().replace("\n", " ")
            print(f"{outcome.verdict:11} {outcome.name}: {why[:300]}")
    for title, key in (("kind", lambda o: o.kind), ("operator", lambda o: o.operator)):
        table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for outcome in outcomes:
            table[key(outcome)][outcome.verdict] += 1
        print(f"\n{title:28}" + "".join(f"{v:>12}" for v in VERDICTS))
        for name, counts in sorted(table.items()):
            print(f"{name:28}" + "".join(f"{counts[v] or '':>12}" for v in VERDICTS))
    total = collections.Counter(o.verdict for o in outcomes)
    print(
        f"conformance: {total['passed']} passed, {total['wrong']} wrong, {total['unsupported']} unsupported, "
        f"{total['error']} errors of {len(outcomes)}"
    )


if __name__ == "__main__":
    main()
