"""Networks of many architectures: as near to a float64 run as eager is, at the exported sizes and at others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch_networks.every import PLAIN, full_name
from tests.torch_networks.judge import Judged, built, compared
from tests.torch_networks.network import Case

torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("case", PLAIN, ids=full_name)
def test_network_is_as_exact_as_eager(case: Case) -> None:
    network = built(case)
    row, report = compared(network, Judged(full_name(case), case.kind, "absent"))
    assert row.verdict == "right"
    assert row.found >= row.attention
    for rule, count in network.fused.items():
        assert report.count(rule) >= count, rule
