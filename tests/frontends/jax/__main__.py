"""`python -m tests.frontends.jax`: every function and many that are drawn, imported and judged by JAX itself."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.frontends.jax.functions import CASES, drawn
from tests.frontends.jax.judge import verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="make jax", description=__doc__)
    parser.add_argument("only", nargs="*", help="names of functions; without any, all")
    parser.add_argument("--drawn", type=int, default=100, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="reference")
    said = parser.parse_args()
    cases = {name: CASES[name] for name in said.only or CASES}
    if not said.only:
        cases |= {f"drawn {seed}": drawn(seed) for seed in range(said.seed, said.seed + said.drawn)}
    counts = Counter[str]()
    for name, case in cases.items():
        try:
            found = verdict(case, said.target)
        except Exception as error:  # whatever goes wrong is what is looked for
            found = f"wrong: {type(error).__name__}: {error}"
        counts[found.split(":")[0]] += 1
        if found != "agrees":
            print(f"{name:20} {found}", flush=True)
    print(f"{len(cases)} functions: {', '.join(f'{n} {kind}' for kind, n in sorted(counts.items()))}")
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
