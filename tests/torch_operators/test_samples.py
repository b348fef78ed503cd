"""The judge of torch's operators: a few samples of every family of rules, verdicts that it must give, and its page."""

# torch is optional, and its internals have no types.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("expecttest")
pytestmark = pytest.mark.filterwarnings("ignore")

from tests.torch_operators.comparing import TOLERANCES, differs, no_farther, signed  # noqa: E402
from tests.torch_operators.page import as_page, as_text  # noqa: E402
from tests.torch_operators.samples import Judged, full_name, judge, operators  # noqa: E402

FAMILIES = ("linalg.inv", "linalg.qr", "linalg.svd", "median", "unique", "lgamma", "special.legendre_polynomial_p")
LIMITS = TOLERANCES[torch.float32]


@pytest.mark.slow
def test_a_sample_of_each_family_is_right() -> None:
    chosen = [op for op in operators() if full_name(op) in FAMILIES]
    rows = list(judge(chosen, [torch.float32], 1))
    assert {row.op: row.verdict for row in rows} == dict.fromkeys(FAMILIES, "right")


def test_results_are_judged_by_value_type_and_shape() -> None:
    x = torch.tensor([1.0, torch.nan])
    assert not differs([x], [x.clone()], LIMITS)
    assert differs([x + 1e-4], [x], LIMITS) and differs([x.double()], [x], LIMITS) and differs([x[:1]], [x], LIMITS)
    assert differs([torch.tensor(3)], [torch.tensor(4)], LIMITS) and differs([2], [3], LIMITS)
    assert differs([x], [x, x], LIMITS)


def test_what_is_twice_as_far_from_float64_as_eager_is_right_and_no_more() -> None:
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    eager = (exact + 1e-4).float()
    assert no_farther([(exact - 1.9e-4).float()], [eager], [exact])
    assert not no_farther([(exact - 2.5e-4).float()], [eager], [exact])
    assert not no_farther([torch.tensor([1.0, torch.nan])], [eager], [exact])


def test_vectors_of_a_decomposition_count_up_to_their_sign_and_partners_share_it() -> None:
    u, s, v = torch.linalg.svd(torch.arange(9.0).reshape(3, 3) ** 0.5)
    flip = torch.tensor([1.0, -1.0, 1.0])
    same = signed((u * flip, s, v * flip[:, None]), (0, 2))
    assert not differs(same, signed((u, s, v), (0, 2)), LIMITS)
    assert differs(signed((u * flip, s, v), (0, 2)), signed((u, s, v), (0, 2)), LIMITS)


def test_the_page_has_the_counts_of_every_operator() -> None:
    rows = [
        Judged("add", "float32", 0, "right"),
        Judged("add", "float64", 0, "right"),
        Judged("eig", "float32", 0, "right"),
        Judged("eig", "float64", 0, "refused", "linalg_eig.default: a tensor of torch.complex128 at: samples.py:1"),
        Judged("randn", "float32", 0, "random"),
    ]
    page = as_page(rows)
    assert (
        "| float32 | 3 | 3 | 2 | 0 | 0 | 1 | 0 | 0 |" in page and "| float64 | 2 | 2 | 1 | 1 | 0 | 0 | 0 | 0 |" in page
    )
    assert "| `add` | 1 of 1 | 1 of 1 |  |" in page
    assert "| `eig` | 1 of 1 | 0 of 1 | 1 refused: linalg_eig.default: a tensor of torch.complex128 |" in page
    assert "| `randn` | 0 of 1 | - | 1 random |" in page
    assert as_text(rows).startswith("float32: 2 right, 1 random")
