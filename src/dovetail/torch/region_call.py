"""A compiled region as a function of tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from dovetail.errors import BindError
from dovetail.frontends.torch.dynamo.region import Feed, Given, Region
from dovetail.frontends.torch.reading.package import torch_module
from dovetail.frontends.torch.reading.tensors import array_of, maker, tensor_of
from dovetail.ir.literal import Array
from dovetail.runtime.program import Program
from dovetail.targets.runtime.address import address


class RegionCall:
    """Runs the program of a region on tensors of the host, whose memory it reads and writes without copies."""

    def __init__(self, program: Program, region: Region, held: Collection[Any]) -> None:
        """`held` are the nodes of parameters and buffers: the same memory in call after call."""
        self.program = program
        self._writes = region.writes
        self._feeds = tuple((feed.name, _reader(feed, feed.node in held)) for feed in region.feeds)
        self._given = tuple((given.name, _made(given)) for given in region.given)

    def __call__(self, *tensors: Any) -> list[Any]:
        arrays = {name: read(tensor) for (name, read), tensor in zip(self._feeds, tensors, strict=False)}
        found = self._written(arrays, tensors) if self._writes else self.program.run(arrays)
        return [make(found[name]) for name, make in self._given]

    def _written(self, arrays: dict[str, Array], tensors: tuple[Any, ...]) -> dict[str, Array]:
        """A run that changes some of its inputs, in their own memory where that can be."""
        try:
            found = self.program.run(arrays)
        except BindError:
            # Inputs that share memory, or that may not be written to: the run gets copies to overwrite.
            found = self.program.run(self.program.undonated(arrays))
        for write in self._writes:
            tensor, new = tensors[write.feed], found[write.name]
            if address(new) != tensor.data_ptr():
                tensor.detach().copy_(tensor_of(new, write.dtype))
        return found


class DeviceRegionCall:
    """The same on tensors of a device: they are taken through DLPack, and so are results, on torch's current stream."""

    def __init__(self, program: Program, region: Region) -> None:
        self.program = program
        self._region = region
        self._from = torch_module().from_dlpack

    def __call__(self, *tensors: Any) -> list[Any]:
        region = self._region
        fed = {feed.name: _there(feed, tensor) for feed, tensor in zip(region.feeds, tensors, strict=True)}
        found = self.program.run(fed, outputs="device")
        for write in region.writes:
            new = found[write.name]
            if new is not fed[region.feeds[write.feed].name]:
                tensors[write.feed].detach().copy_(self._from(new))
        return [self._tensor(found[given.name], given) for given in region.given]

    def _tensor(self, array: Any, given: Given) -> Any:
        made = self._from(array)
        return made if given.back is None else made.permute(given.back)


def _there(feed: Feed, tensor: Any) -> Any:
    """What a program on a device is given for a tensor: the tensor, dense and without a gradient."""
    if feed.is_size:
        return _sized(tensor)
    plain = tensor.detach() if feed.order is None else tensor.detach().permute(feed.order)
    return plain.contiguous() if tensor.is_cuda else _array(plain)


def _reader(feed: Feed, is_held: bool) -> Callable[[Any], Array]:
    """What gives the array of a tensor."""
    if feed.is_size:
        return _sized
    if feed.order is not None:
        order = feed.order
        return lambda tensor: _array(tensor.permute(order))
    return _Held() if is_held else _array


def _sized(size: int) -> Array:
    """An array that nothing reads: its shape says the size."""
    return np.empty(size, np.uint8)


def _array(tensor: Any) -> Array:
    try:
        return tensor.numpy() if tensor.is_contiguous() else tensor.contiguous().numpy()
    except (RuntimeError, TypeError):
        return array_of(tensor)  # it needs a gradient, or NumPy lacks its type


class _Held:
    """The array of a parameter: made again where the parameter has other memory, so that it is never out of date."""

    def __init__(self) -> None:
        self._seen: tuple[int, Array] | None = None

    def __call__(self, tensor: Any) -> Array:
        at, seen = tensor.data_ptr(), self._seen
        if seen is not None and seen[0] == at:
            return seen[1]
        array = array_of(tensor)
        self._seen = (at, array) if address(array) == at else None
        return array


def _made(given: Given) -> Callable[[Array], Any]:
    """What makes the tensor of an array."""
    make, back = maker(given.dtype), given.back
    return make if back is None else lambda array: make(array).permute(back)
