"""How near results of modules are to float64, beside those of eager."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytree: Any = pytest.importorskip("torch.utils._pytree")


def wide(tree: Any) -> Any:
    def doubled(v: Any) -> Any:
        return v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v

    return pytree.tree_map(doubled, tree)


def leaves(tree: Any) -> list[Any]:
    return [v for v in pytree.tree_leaves(tree) if isinstance(v, torch.Tensor)]


def assert_as_near_as_eager(found: Any, wanted: Any, exact: Any) -> None:
    """Twice eager's own distance from float64, and a few roundings."""
    assert pytree.tree_structure(found) == pytree.tree_structure(wanted)
    for x, y, r in zip(leaves(found), leaves(wanted), leaves(exact), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        if not x.is_floating_point():
            assert torch.equal(x, y)
            continue
        allowed = 2 * (y.double() - r).abs().max() + 8 * torch.finfo(y.dtype).eps * r.abs().max().clamp(min=1.0)
        assert (x.double() - r).abs().max() <= allowed


__all__ = ["assert_as_near_as_eager", "leaves", "wide"]
