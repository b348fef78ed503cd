"""Models of transformers at tiny sizes: their outputs as they are, and attention found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch_networks.every import named
from tests.torch_networks.judge import Judged, built, compared

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.exhaustive]

MODELS: dict[str, dict[str, int]] = {
    "bert": {"attention": 2, "linear": 2},
    "modernbert": {},
    "llama": {"rope_attention": 2, "swiglu": 2},
    "gemma2_softcap": {"rope_attention": 2},
}


@pytest.mark.parametrize("name", MODELS)
def test_model_of_transformers(name: str) -> None:
    case = named(f"transformers/{name}")
    row, report = compared(built(case), Judged(name, case.kind, "absent"))
    assert row.verdict == "right"
    assert row.found >= row.attention
    for rule, count in MODELS[name].items():
        assert report.count(rule) >= count, rule
