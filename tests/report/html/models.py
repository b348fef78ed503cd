"""Small compilations that the tests of the page look at."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from dovetail import Graph, ops
from dovetail.cli.model import graph_of
from dovetail.dtypes import f32
from dovetail.ir.graph import Builder
from dovetail.ir.origin import scope
from dovetail.report.html.page import page_source
from dovetail.report.html.timeline import Span
from dovetail.runtime.compile import Compilation, compilation, make_request
from dovetail.runtime.page import code_shown
from tests.cli.commands import SMALL

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=1">',
    "<!-- --><svg onload=alert(1)>",
    "line\u2028and\u2029breaks\x00\x1b[31m\u202ereversed",
    "'; DROP TABLE kernels; --",
    "%%script%%",
    "x" * 5000,
    "emoji 🪵 and ümläute",
)
"""Names that try to be more than names."""


@cache
def compiled(model: str, target: str = "cpu") -> Compilation:
    """A built-in model by its short name, compiled."""
    return compilation(graph_of(SMALL[model]), make_request(target=target))


def source_of(made: Compilation, timeline: Sequence[Span] | None = None) -> dict[str, Any]:
    code = code_shown(made.target, made.plan)
    return page_source(made.report(), made.lowered, made.plan, made.machine, made.setup.sizes, timeline, code)


def hostile_graph() -> Graph:
    """Two layers of which one misses, with hostile names wherever a model has names."""
    builder = Builder(HOSTILE[0], lines=False)
    with builder.recording():
        x = builder.input(HOSTILE[1], f32[4, 8])
        with scope(HOSTILE[2]), scope(HOSTILE[3]):
            y = ops.relu(x @ builder.param(HOSTILE[4], f32[8, 6]) + builder.param(HOSTILE[5], f32[4, 6]))
        with scope(HOSTILE[6]), scope(HOSTILE[7]):
            builder.output(HOSTILE[0], ops.exp(y @ builder.param("w", f32[6, 6])))
    return builder.graph()
