"""The page: the report, its drawings and the code that shows them, in one file that loads nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import resources
from typing import Any, cast

from dovetail.declare.machine import Machine
from dovetail.ir.collector import collector_paused
from dovetail.ir.dim import Size
from dovetail.passes.pipeline import Lowered
from dovetail.plan.plan import Plan
from dovetail.report.html.arena import arena_picture
from dovetail.report.html.code import Code
from dovetail.report.html.lanes import MeshEntry, lanes_picture
from dovetail.report.html.timeline import Span
from dovetail.report.html.views import stage_views
from dovetail.report.json_form import as_dict
from dovetail.report.record import facts
from dovetail.report.report import Report
from dovetail.version import __version__

SCRIPTS = (
    "format.js",
    "source.js",
    "theme.js",
    "scene.js",
    "draw.js",
    "nodes.js",
    "stage.js",
    "input.js",
    "panel.js",
    "summary.js",
    "list.js",
    "charts.js",
    "tables.js",
    "lanes.js",
    "main.js",
)
"""The page's code in the order in which it is put together."""
STYLES = ("page.css", "graph.css", "panel.css", "charts.css")


def page_source(
    report: Report,
    lowered: Lowered,
    plan: Plan,
    machine: Machine,
    sizes: Mapping[str, Size],
    timeline: Sequence[Span] | None = None,
    code: Code | None = None,
    mesh: MeshEntry | None = None,
) -> dict[str, Any]:
    """Everything that the page shows: the report as `explain --json` gives it, and what is drawn from the plan.

    `machine` is what the report was priced with, `sizes` what symbols count as in its estimates. `mesh` is
    what a placement on devices makes of the program.
    """
    with collector_paused():
        told = as_dict(report)
        for shown, miss in zip(told["missed"], report.missed, strict=True):
            shown["facts"] = dict(facts([miss]))
        return {
            "version": __version__,
            "report": told,
            "machine": asdict(machine),
            "stages": stage_views(lowered, plan),
            "arena": arena_picture(plan, sizes),
            "code": None
            if code is None
            else {"language": code.language, "of": list(code.of), "packed": _packed(json.dumps(code.texts))},
            "timeline": None if timeline is None else [asdict(span) for span in timeline],
            "mesh": None if mesh is None else lanes_picture(mesh),
        }


def page(source: Mapping[str, Any]) -> str:
    """The HTML of a page that shows this source."""
    style, script = _own(STYLES), _own(SCRIPTS)
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    body = resources.files(__package__ or "").joinpath("page.html").read_text(encoding="utf-8")
    parts = {"policy": policy, "style": style, "script": script, "source": embedded(source)}
    pieces = body.split("%%")
    # Every other piece is the name of a part; the parts themselves are not searched for names.
    return "".join([parts[p] if i % 2 else p for i, p in enumerate(pieces)])


def embedded(source: Mapping[str, Any]) -> str:
    """Plain data as JSON that cannot end the element it stands in, whatever the names of a model are."""
    try:
        text = _spelled(source)
    except ValueError:
        text = _spelled(_finite(source))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _spelled(source: Any) -> str:
    return json.dumps(source, ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    """The same data without what JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in cast("Sequence[Any]", value)]
    return value


def _packed(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 9)).decode("ascii")


@cache
def _own(names: tuple[str, ...]) -> str:
    """Files of the page put together; scripts share one scope that the outside does not see."""
    texts = [resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8") for name in names]
    joined = "\n".join(texts)
    return f'(() => {{\n"use strict";\n{joined}}})();\n' if names == SCRIPTS else joined


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


__all__ = ["SCRIPTS", "STYLES", "embedded", "page", "page_source"]
