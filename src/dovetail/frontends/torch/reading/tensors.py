"""Tensors as arrays and arrays as tensors, without copies."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dovetail.errors import BindError
from dovetail.frontends.torch.reading.package import dtypes, torch_module
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array

_SAME_WIDTH = {8: "uint8", 16: "int16"}
"""Integer types through which NumPy sees floats that it has no type for."""


def array_of(tensor: Any) -> Array:
    """The memory of a tensor as an array; one that is not dense is copied."""
    torch = torch_module()
    if tensor.device.type != "cpu":
        raise BindError(f"a tensor on {tensor.device}", hint="move it to the cpu, or compile with target='cuda'")
    dtype = dtypes().get(tensor.dtype)
    if dtype is None:
        raise BindError(f"a tensor of {tensor.dtype}", hint="convert it to a type that dovetail has")
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if not plain.is_contiguous():
        plain = plain.contiguous()
    if _has_numpy(dtype):
        return plain.numpy()
    return plain.view(getattr(torch, _SAME_WIDTH[dtype.bits])).numpy().view(dtype.numpy)


@cache
def maker(dtype: DType) -> Callable[[Array], Any]:
    """What makes a tensor that shares the memory of an array of a dtype."""
    torch = torch_module()
    if _has_numpy(dtype):
        return torch.from_numpy
    (own,) = [t for t, d in dtypes().items() if d is dtype]
    whole = np.dtype(_SAME_WIDTH[dtype.bits])
    return lambda array: torch.from_numpy(array.view(whole)).view(own)


def tensor_of(array: Array, dtype: DType) -> Any:
    """An array as a tensor that shares its memory."""
    return maker(dtype)(array)


def _has_numpy(dtype: DType) -> bool:
    return dtype.numpy.kind != "V" and dtype.name not in _THROUGH_INTEGERS


_THROUGH_INTEGERS = frozenset({"bf16", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"})
