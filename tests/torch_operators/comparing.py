"""How near results of operators are to those of torch: by its tolerances, by float64, up to signs of vectors."""

# torch is optional, and its internals have no types.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

TOLERANCES = {
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
}
"""Relative and absolute, as torch.testing has them."""
SIGNS = {"linalg.eigh": (1, -1), "linalg.svd": (0, 2)}
"""Decompositions whose vectors have any sign: the result with them as columns, and the one that shares their signs."""


def differs(found: Any, wanted: Any, limits: tuple[float, float]) -> str:
    """Empty where results agree, else what does not."""
    left, right = pytree.tree_leaves(found), pytree.tree_leaves(wanted)
    if len(left) != len(right):
        return f"{len(left)} results for {len(right)}"
    for index, (x, y) in enumerate(zip(left, right, strict=True)):
        if isinstance(y, torch.Tensor):
            if not isinstance(x, torch.Tensor) or x.dtype != y.dtype or x.shape != y.shape:
                return f"result {index} is {_type(x)} for {_type(y)}"
            inexact = y.is_floating_point() or y.is_complex()
            relative, absolute = (max(a, b) for a, b in zip(limits, TOLERANCES.get(y.dtype, limits), strict=True))
            given: dict[str, Any] = {"rtol": relative, "atol": absolute} if inexact else {"rtol": 0, "atol": 0}
            try:
                torch.testing.assert_close(x, y.detach(), equal_nan=True, check_stride=False, **given)
            except AssertionError as error:
                told = [line for line in str(error).splitlines() if "difference" in line or "Mismatched" in line]
                return f"result {index}: {'; '.join(told)[:160]}"
        elif x != y and not (x != x and y != y):
            return f"result {index} is {x} for {y}"
    return ""


def signed(results: Any, places: tuple[int, int]) -> list[Any]:
    """Results with the largest element of each vector positive; partners change their signs with them."""
    leaves = list(pytree.tree_leaves(results))
    first, second = places
    vectors = leaves[first]
    if vectors.numel() == 0:
        return leaves
    sign = torch.sign(vectors.gather(-2, vectors.abs().argmax(-2, keepdim=True)))
    leaves[first] = vectors * sign
    if second >= 0:
        partner = leaves[second]
        # Of a full decomposition, vectors beyond the singular values have no partner.
        count = min(sign.shape[-1], partner.shape[-2])
        factor = torch.ones(*partner.shape[:-1], 1, dtype=partner.dtype)
        factor[..., :count, :] = sign[..., :count].mT
        leaves[second] = partner * factor
    return leaves


def _type(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__


def no_farther(found: Any, wanted: Any, exact: Any) -> bool:
    """Whether no number is more than twice as far from the float64 result as eager's worst is, beside a rounding."""
    leaves = [pytree.tree_leaves(tree) for tree in (found, wanted, exact)]
    for x, y, r in zip(*leaves, strict=True):
        if not isinstance(y, torch.Tensor) or not (y.is_floating_point() or y.is_complex()):
            if isinstance(y, torch.Tensor) and not torch.equal(x, y):
                return False
            continue
        if x.shape != y.shape or x.dtype != y.dtype or r.shape != y.shape:
            return False
        mine, theirs = ((v.to(r.dtype) - r).abs() for v in (x, y))
        same = (x == y) | (x.isnan() & y.isnan())
        rounding = 2 * torch.finfo(y.dtype).eps * r.abs().nan_to_num(posinf=0.0)
        far = (
            mine.nan_to_num(nan=torch.inf) > 2 * theirs.nan_to_num(posinf=0.0).max() + rounding
            if mine.numel()
            else mine > 0
        )
        if bool((far & ~same).any()):
            return False
    return True


def widened(value: Any) -> Any:
    wider = {torch.float32: torch.float64, torch.complex64: torch.complex128}
    if isinstance(value, torch.Tensor):
        return value.detach().to(wider.get(value.dtype, value.dtype))
    return wider.get(value, value) if isinstance(value, torch.dtype) else value


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:200]
