"""Every operator of torch's own database: `make torch`. Arguments are patterns of names."""

# torch is optional, and its internals have no types.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch

from tests.torch_operators.page import as_page, as_text
from tests.torch_operators.running import add_rows, chosen, in_groups, latest, read_rows
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
    picked = chosen(everything, options.patterns)[:: options.every]
    earlier = read_rows(options.rows)
    found: list[Judged] = []
    for rows in in_groups(
        picked, lambda group: judge(group, dtypes, options.samples), options.together, options.seconds
    ):
        found += rows
        add_rows(options.rows, rows)
    together = latest(everything, earlier, found)
    if {row.op for row in together} == {full_name(op) for op in everything if op.supported_dtypes("cpu") & set(dtypes)}:
        PAGE.write_text(as_page(together, earlier=len(together) - len(found)), encoding="utf-8")
    print(as_text(found))
    return int(any(row.verdict in ("wrong", "error") for row in found))


if __name__ == "__main__":
    os.environ.setdefault("DOVETAIL_CACHE", "off")
    sys.exit(main())
