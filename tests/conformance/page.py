"""Outcomes as text: tables for the terminal, the page of the docs, and the quick part of the suite."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Iterable, Sequence

import onnx

from tests.conformance.suite import VERDICTS, Outcome

Counts = collections.Counter[str]
SUMMARY = re.compile(r"conformance: (\d+) passed, (\d+) wrong, (\d+) unsupported, (\d+) errors of (\d+)")
EACH = 2
"""So many cases of each operator are in the quick part."""
MOST_QUICK_SECONDS = 0.5
"""A case that takes longer is not in the quick part."""


def titled(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """The operator of each case by its name; a case that writes out a function belongs to the one it writes out."""
    by_name = {o.name: o.operator for o in outcomes}
    return {name: by_name.get(re.sub(r"_expanded(_ver\d+)?$", "", name), op) for name, op in by_name.items()}


def counted(outcomes: Iterable[Outcome], key: Callable[[Outcome], str]) -> dict[str, Counts]:
    """How many cases ended how, by a key, in the order of the key."""
    table: dict[str, Counts] = {}
    for outcome in outcomes:
        table.setdefault(key(outcome), collections.Counter())[outcome.verdict] += 1
    return dict(sorted(table.items(), key=lambda item: item[0].lower()))


def summary(outcomes: Sequence[Outcome]) -> str:
    """The last line: all of it in numbers."""
    total = collections.Counter(o.verdict for o in outcomes)
    return (
        f"conformance: {total['passed']} passed, {total['wrong']} wrong, {total['unsupported']} unsupported, "
        f"{total['error']} errors of {len(outcomes)}"
    )


def as_text(outcomes: Sequence[Outcome], *, verbose: bool, tables: bool = True) -> str:
    """What did not pass and why, the tables, and the summary."""
    lines = [
        f"{o.verdict:11} {o.name}: {' '.join(o.why.split())[:300]}"
        for o in sorted(outcomes, key=lambda o: o.name)
        if o.verdict != "passed" and (verbose or o.verdict != "unsupported")
    ]
    of = titled(outcomes)
    for title, table in tables * (
        ("kind", counted(outcomes, lambda o: o.kind)),
        ("operator", counted(outcomes, lambda o: of[o.name])),
    ):
        lines += ["", f"{title:28}" + "".join(f"{v:>12}" for v in VERDICTS)]
        lines += [f"{name:28}" + "".join(f"{counts[v] or '':>12}" for v in VERDICTS) for name, counts in table.items()]
    return "\n".join([*lines, "", summary(outcomes)])


def as_page(outcomes: Sequence[Outcome]) -> str:
    """The page of the docs."""
    of = titled(outcomes)
    refused = [o for o in outcomes if o.verdict == "unsupported"]
    reasons: dict[str, dict[str, int]] = {}
    for outcome in refused:
        found = reasons.setdefault(reason(outcome), {})
        found[of[outcome.name]] = found.get(of[outcome.name], 0) + 1
    lines = [
        "# Conformance",
        "",
        f'The whole backend suite of onnx {onnx.__version__} on `target="cpu"`, judged by the suite\'s own comparison. '
        "`make conformance` runs it and writes this page.",
        "",
        f"`{summary(outcomes)}`",
        "",
        "Wrong: an output differs. Unsupported: refused with a typed error. Error: anything else.",
        "",
        "## By kind",
        "",
        *_table("kind", counted(outcomes, lambda o: o.kind)),
        "",
        "## By operator",
        "",
        "A case of several operators stands at the one that its name begins with.",
        "",
        *_table("operator", counted(outcomes, lambda o: of[o.name])),
        "",
        "## What is unsupported",
        "",
    ]
    if not reasons:
        return "\n".join([*lines, "Nothing.", ""])
    lines += ["| cases | reason | operators |", "|---|---|---|"]
    ordered = sorted(reasons.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    for why, found in ordered:
        lines.append(f"| {sum(found.values())} | {_cell(why)} | {', '.join(sorted(found))} |")
    return "\n".join([*lines, ""])


def _table(title: str, table: dict[str, Counts]) -> list[str]:
    lines = [f"| {title} | {' | '.join(VERDICTS)} |", "|---" * (len(VERDICTS) + 1) + "|"]
    return [*lines, *(f"| {name} | {' | '.join(str(c[v] or '') for v in VERDICTS)} |" for name, c in table.items())]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def reason(outcome: Outcome) -> str:
    """Why a case is refused, in short."""
    first, *rest = outcome.why.strip().splitlines() or [""]
    if first.endswith("not supported:"):
        missing = [found[1] for line in rest if (found := re.match(r"  ([\w.]+): (?:the|a) ", line))]
        return f"there is no rule for {', '.join(missing)}"
    return re.sub(r"'[^']*'", "…", first)


def quick(outcomes: Sequence[Outcome]) -> list[str]:
    """The first cases of each operator that pass at once, one if none does, each as `operator name`."""
    of = titled(outcomes)
    chosen: dict[str, list[str]] = {}
    # The first case of a process takes long whatever it is: imports are part of it.
    for outcome in sorted(outcomes, key=lambda o: (o.seconds > MOST_QUICK_SECONDS, o.name)):
        if outcome.verdict == "passed":
            found = chosen.setdefault(of[outcome.name], [])
            if not found or (len(found) < EACH and outcome.seconds <= MOST_QUICK_SECONDS):
                found.append(outcome.name)
    return [f"{operator} {name}" for operator, names in sorted(chosen.items()) for name in names]
