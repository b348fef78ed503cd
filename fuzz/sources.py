"""Where random graphs come from: primitives, networks as ONNX files, and NNSmith."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from dovetail.ir.dtype import bf16, f16, f32, f64
from fuzz.case import Case
from fuzz.nnsmith_models import nnsmith_models
from fuzz.onnx_layers import networks
from tests.strategies import graphs

EXTENTS = st.one_of(st.integers(1, 5), st.sampled_from((7, 8, 12, 16, 17, 31, 32, 33, 64)))
"""Sizes below, at and above those of vectors and tiles."""
LARGEST = 1 << 14
"""Elements of a value: the reference computes them all several times."""


def primitives() -> SearchStrategy[Case]:
    """Graphs of primitives in every float type, some sizes symbols, some empty."""
    drawn = st.one_of(
        graphs(among=(f32, f64), extents=EXTENTS, nodes=(3, 20)),
        graphs(among=(f32, f64), extents=EXTENTS, symbolic=True, nodes=(3, 20)),
        graphs(among=(f16, bf16), extents=EXTENTS, nodes=(3, 12)),
        graphs(among=(f32,), symbolic=True, empty=True, nodes=(3, 12)),
    )
    return drawn.map(lambda made: Case(*made)).filter(_is_small)


def _is_small(case: Case) -> bool:
    return all(array.size <= LARGEST for array in (*case.feeds.values(), *case.graph.params.values()))


SOURCES: Mapping[str, Callable[[], SearchStrategy[Case]]] = MappingProxyType(
    {"primitives": primitives, "networks": networks, "nnsmith": nnsmith_models}
)
