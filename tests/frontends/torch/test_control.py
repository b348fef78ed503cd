"""Higher-order operators: branches, loops and functions of scores, as near to float64 as eager is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch_networks.every import named
from tests.torch_networks.judge import Judged, built, compared

torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(
    "name", ["cond_of_layers", "while_loop", "while_of_layers", "scan_of_layers", "map_over_rows", "flex_attention"]
)
def test_higher_order_operator(name: str) -> None:
    case = named(f"torch/{name}")
    row, _ = compared(built(case), Judged(name, case.kind, "absent"))
    assert row.verdict == "right"
