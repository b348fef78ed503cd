"""Tensors as arrays and arrays as tensors, without copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from dovetail.errors import BindError
from dovetail.frontends.torch.reading.package import dtypes, torch_module
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.targets.runtime.arrays.array_library import ArrayLibrary, Numbered

_SAME_WIDTH = {8: "uint8", 16: "int16"}
"""Integer types through which NumPy sees floats that it has no type for."""


def array_of(tensor: Any, name: str = "a tensor", *, lent: bool = False) -> Array:
    """The memory of a tensor as an array; one that is not dense is copied.

    From then on torch refuses to give the tensor's storage other memory (`resize_`). It does not if the array is lent:
    nobody may read that after the call for which it was made.
    """
    torch = torch_module()
    if tensor.device.type != "cpu":
        raise BindError(
            f"{name} is on {tensor.device}",
            hint="move it to the cpu" if tensor.device.type != "cuda" else "move it to the cpu, or compile for cuda",
        )
    if tensor.layout is not torch.strided:
        raise BindError(f"{name} has the layout {tensor.layout}", hint="make it dense: tensor.to_dense()")
    dtype = dtypes().get(tensor.dtype)
    if dtype is None:
        raise BindError(f"{name} is of {tensor.dtype}", hint="convert it to a type that dovetail has")
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if not plain.is_contiguous():
        plain = plain.contiguous()
    try:
        if not _has_numpy(dtype):
            plain = plain.view(getattr(torch, _SAME_WIDTH[dtype.bits]))
        array = np.from_dlpack(plain) if lent else plain.numpy()
        return array if _has_numpy(dtype) else array.view(dtype.numpy)
    except (BufferError, RuntimeError, TypeError) as error:
        raise BindError(
            f"{name} is a {type(tensor).__name__} without memory of its own: {error}", hint="pass a plain tensor"
        ) from error


@cache
def maker(dtype: DType) -> Callable[[Array], Any]:
    """What makes a tensor that shares the memory of an array of a dtype."""
    torch = torch_module()
    if _has_numpy(dtype):
        return torch.from_numpy
    whole = np.dtype(_SAME_WIDTH[dtype.bits])
    own = _own(dtype)
    return lambda array: torch.from_numpy(array.view(whole)).view(own)


def tensor_of(array: Array, dtype: DType) -> Any:
    """An array as a tensor that shares its memory."""
    return maker(dtype)(array)


def is_counted(held: Any) -> bool:
    """Whether torch counts what is written into a tensor: it does not for those that inference made."""
    return isinstance(held, torch_module().Tensor) and not held.is_inference()


def write_tensors(module: Any, arrays: Mapping[str, Array]) -> None:
    """Copy arrays into the parameters and buffers of a module that have their names."""
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    strange = [name for name in arrays if name not in held]
    if strange:
        raise BindError(
            f"{type(module).__name__} holds no {', '.join(strange)}", hint="pass the module that was trained"
        )
    with torch_module().no_grad():
        for name, array in arrays.items():
            held[name].copy_(tensor_of(np.array(array), dtypes()[held[name].dtype]))


@cache
def torch_library() -> ArrayLibrary:
    """Tensors in host memory, as prepared calls use them."""
    plain = torch_module().Tensor

    def shapes(tensors: Sequence[Any], dtypes: Numbered) -> tuple[tuple[int, ...], ...] | None:
        found: list[tuple[int, ...]] = []
        for index, dtype in dtypes:
            tensor = tensors[index]
            if (
                tensor.__class__ is not plain
                or tensor.dtype is not dtype
                or not tensor.is_cpu
                or not tensor.is_contiguous()
                or tensor.requires_grad
                or tensor.is_neg()
                or (dtype.is_complex and tensor.is_conj())
            ):
                return None
            found.append(tensor.shape)
        return tuple(found)

    return ArrayLibrary(
        dtype=_own,
        shapes=shapes,
        address=plain.data_ptr,
        empty=lambda shape, dtype: partial(_empty(), shape, _dense(shape), _own(dtype)),
        view=array_of,
        wrap=tensor_of,
        can_write=lambda tensor: True,
        like=_like(),
    )


def _like() -> Callable[[Sequence[Any]], Callable[..., bool]] | None:
    """The test of dynamo's guards, where torch has it: types, dtypes, devices, dispatch keys, sizes and strides."""
    try:
        guards = torch_module("torch._C._dynamo.guards").TensorGuards
    except (AttributeError, ImportError):
        return None

    def like(tensors: Sequence[Any]) -> Callable[..., bool]:
        sizes = [list(t.shape) for t in tensors]
        strides = [list(t.stride()) for t in tensors]
        return guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check

    return like


def _empty() -> Callable[[tuple[int, ...], tuple[int, ...], Any], Any]:
    """Makes a tensor of a shape, strides and a dtype; compiled code of torch calls it, in half the time of empty."""
    try:
        return torch_module("torch._C._dynamo.guards")._empty_strided_cpu
    except (AttributeError, ImportError):
        return lambda shape, strides, dtype: torch_module().empty_strided(shape, strides, dtype=dtype)


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a dense tensor, in elements."""
    return tuple(math.prod(max(1, size) for size in shape[axis + 1 :]) for axis in range(len(shape)))


def _own(dtype: DType) -> Any:
    """torch's dtype for one of ours."""
    (own,) = [t for t, d in dtypes().items() if d is dtype]
    return own


def _has_numpy(dtype: DType) -> bool:
    return dtype.numpy.kind != "V" and dtype.name not in _THROUGH_INTEGERS


_THROUGH_INTEGERS = frozenset({"bf16", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"})
