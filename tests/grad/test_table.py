"""docs/gradient-rules.md is generated, and every primitive is in it."""

from __future__ import annotations

from dovetail import ops
from dovetail.grad.table import described, page
from tests.golden import Golden


def test_the_page_is_generated(golden: Golden) -> None:
    golden.file("docs/gradient-rules.md", page())


def test_every_primitive_has_one_of_three() -> None:
    kinds = {op.name: described(op)[0] for op in ops.ALL}
    assert set(kinds.values()) == {"rule", "constant", "refused"}
    refused = {name for name, kind in kinds.items() if kind == "refused"}
    matrices = {"lu", "reflectors", "svd", "eig"}
    assert refused == {"imag", "complex", "cast_f8", "deform_conv", "roi_align", "roi_pool", "grid_sample"} | matrices
