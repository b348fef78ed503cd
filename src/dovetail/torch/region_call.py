"""A compiled region as a function of tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import itemgetter
from typing import Any, cast

import numpy as np

from dovetail.errors import BindError
from dovetail.frontends.torch.dynamo.nodes import is_weight
from dovetail.frontends.torch.dynamo.region import Feed, Given, Region
from dovetail.frontends.torch.reading.package import torch_module
from dovetail.frontends.torch.reading.tensors import array_of, tensor_of, torch_library
from dovetail.ir.literal import Array
from dovetail.kernels.spec import ALIGNMENT
from dovetail.runtime.program import Program
from dovetail.targets.runtime.arrays.array_library import ArrayLibrary, Numbered
from dovetail.targets.runtime.calls.prepared_call import PreparedCalls
from dovetail.targets.runtime.calls.repeated_call import AddressWrite, RepeatedCall, repeated
from dovetail.torch.staying import Stay, is_compiled

FIRST_RUNS = 100
"""Runs of a region before it makes a test of its weights, which takes as long as it saves in this many."""
MOST_REPEATS = 8
"""How often a region makes a test of its weights: those of layers that share a graph take turns."""


class RegionCall:
    """Runs the program of a region on tensors of the host, whose memory it reads and writes without copies."""

    def __init__(self, program: Program, region: Region) -> None:
        self.program = program
        self._region = region
        self._library = replace(region_library(), comes_again=self._prepared_calls())
        feeds = {feed.name: index for index, feed in enumerate(region.feeds)}
        order = [feeds[str(value.attrs["name"])] for value in program.graph.inputs]
        self._order = tuple((index, region.feeds[index]) for index in order)
        in_order = order == list(range(len(region.feeds)))
        self._in_order_of_feeds = in_order and all(f.order is None and not f.is_size for f in region.feeds)
        """Whether the program takes the tensors of a call as they are."""
        names = [result.name for result in region.given]
        self._only = names[0] if len(names) == 1 else ""
        """The name of the one result; empty where there are several, or none: such a region only writes to inputs."""
        self._picked = itemgetter(*names) if len(names) > 1 else None
        self._moved = tuple((i, result.back) for i, result in enumerate(region.given) if result.back is not None)
        self._weights = {index for index, feed in enumerate(region.feeds) if is_weight(feed.node)}
        self._can_repeat = self._in_order_of_feeds and not region.writes and not self._moved
        self._runs = self._repeats = 0
        self._repeated: RepeatedCall | None = None
        self.when_repeated: Callable[[RepeatedCall], None] | None = None
        """Called with the function that replaces this call from now on."""

    def _prepared_calls(self) -> Callable[[PreparedCalls], None]:
        """Takes note of prepared calls, which must not hold this call: they would be a cycle."""
        self._calls: list[weakref.ref[PreparedCalls]] = []
        noted = self._calls

        def note(calls: PreparedCalls) -> None:
            noted[:] = [weakref.ref(calls)]

        return note

    def __call__(self, tensors: tuple[Any, ...]) -> Sequence[Any]:
        repeated = self._repeated
        return self._run_any(tensors) if repeated is None else repeated(tensors)

    def _run_any(self, tensors: tuple[Any, ...]) -> Sequence[Any]:
        results = self._prepared(tensors)
        if self._calls and self._can_repeat:
            self._runs += 1
            if self._runs >= FIRST_RUNS and self._repeats < MOST_REPEATS and is_compiled():
                self._runs = 0
                self._repeat(tensors)
        return results

    def _repeat(self, tensors: tuple[Any, ...]) -> None:
        """Check from now on only tensors that are not weights, as long as those stay where they are."""
        calls = self._calls[0]()
        if calls is None:
            return

        def placed(
            weights: Mapping[int, Any], feeds: Sequence[Any], writes: Sequence[AddressWrite]
        ) -> Callable[..., bool]:
            return Stay(weights, feeds, writes).test()

        own = weakref.WeakMethod(self._run_any)  # the function would be in a cycle with this call

        def otherwise(changed: tuple[Any, ...]) -> Sequence[Any]:
            run = own()
            assert run is not None, "this call has called"
            return run(changed)

        call = repeated(calls, tensors, self._weights, placed, otherwise)
        if call is not None:
            self._repeated = call
            self._repeats += 1
            if self.when_repeated is not None:
                self.when_repeated(call)

    def _prepared(self, tensors: tuple[Any, ...]) -> Sequence[Any]:
        feeds = tensors if self._in_order_of_feeds else [_fed(feed, tensors[index]) for index, feed in self._order]
        results = self.program.launch(feeds, self._library)
        if results is None:
            results = self._checked(tensors)
        for write in self._region.writes:
            tensor, new = tensors[write.feed], results[write.name]
            if new.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(new)
        if self._moved:
            return self._in_order(results)
        if self._picked is not None:
            return self._picked(results)
        return (results[self._only],) if self._only else ()

    def _in_order(self, arrays: dict[str, Any]) -> list[Any]:
        """Return the results, with the axes of each as torch has them."""
        results = [arrays[result.name] for result in self._region.given]
        for index, back in self._moved:
            results[index] = results[index].permute(back)
        return results

    def _checked(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """Run without preparation: the first run of some shapes, or of tensors that are copied first."""
        lent = not self._region.writes  # what is written to may be a result too
        pairs = zip(self._region.feeds, tensors, strict=True)
        arrays = {feed.name: _array(feed, tensor, lent=lent) for feed, tensor in pairs}
        try:
            results = self.program.run(arrays)
        except BindError:
            if not self._region.writes:
                raise
            # Inputs that share memory, or that may not be written to: the run gets copies to overwrite.
            results = self.program.run(self.program.undonated(arrays))
        outputs = self.program.graph.outputs
        return {name: tensor_of(array, outputs[name].dtype) for name, array in results.items()}


class DeviceRegionCall:
    """The same on tensors of a device, which are taken through DLPack, and so are results.

    Runs are on CUDA's legacy default stream: after what torch's current stream has, which then waits for them.
    """

    def __init__(self, program: Program, region: Region) -> None:
        self.program = program
        self._region = region
        self._from = torch_module().from_dlpack
        self._written = {write.feed for write in region.writes}

    def __call__(self, tensors: tuple[Any, ...]) -> Sequence[Any]:
        region = self._region
        pairs = enumerate(zip(region.feeds, tensors, strict=True))
        fed = {feed.name: _there(feed, tensor, is_written=i in self._written) for i, (feed, tensor) in pairs}
        arrays = cast(Mapping[str, Any], self.program.run(fed, outputs="device"))
        if any(tensors[index].is_cuda for index in self._written):
            _wait_for_runs()
        for write in region.writes:
            tensor, new = tensors[write.feed], arrays[write.name]
            moved = new if new is fed[region.feeds[write.feed].name] else self._from(new)
            if moved.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(moved)
        return [self._tensor(arrays[result.name], result) for result in region.given]

    def _tensor(self, array: Any, result: Given) -> Any:
        tensor = self._from(array)
        return tensor if result.back is None else tensor.permute(result.back)


@cache
def region_library() -> ArrayLibrary:
    """Tensors as captured graphs get them: parameters too, and those that need a gradient, which is torch's matter."""

    def shapes(tensors: Sequence[Any], dtypes: Numbered) -> tuple[tuple[int, ...], ...] | None:
        shapes_: list[tuple[int, ...]] = []
        for index, dtype in dtypes:
            tensor = tensors[index]
            if tensor.dtype is not dtype or not tensor.is_contiguous() or tensor.is_neg():
                return None
            if dtype.is_complex and tensor.is_conj():
                return None
            shapes_.append(tensor.shape)
        return tuple(shapes_)

    return replace(torch_library(), shapes=shapes)


def _fed(feed: Feed, tensor: Any) -> Any:
    """Return the argument of a prepared call: the tensor with its axes as they are stored, or one of a size."""
    if feed.is_size:
        torch = torch_module()
        return torch.empty(int(tensor), dtype=torch.uint8)
    return tensor if feed.order is None else tensor.permute(feed.order)


def _array(feed: Feed, tensor: Any, *, lent: bool = False) -> Array:
    """Return the tensor as an array; one that is not dense is copied. For `lent` see `array_of`."""
    if feed.is_size:
        return np.empty(int(tensor), np.uint8)
    return array_of(tensor if feed.order is None else tensor.permute(feed.order), lent=lent)


def _there(feed: Feed, tensor: Any, *, is_written: bool) -> Any:
    """Return the argument of a program on a device: the tensor, dense and without a gradient.

    A run copies what is not aligned, but for what it writes to: that is copied here, and back after the run.
    """
    if feed.is_size or not tensor.is_cuda:
        return _array(feed, tensor)
    plain = tensor.detach() if feed.order is None else tensor.detach().permute(feed.order)
    dense = plain.contiguous()
    return dense.clone() if is_written and dense.data_ptr() % ALIGNMENT else dense


def _wait_for_runs() -> None:
    """Let torch's current stream wait for a run that has written to tensors; for results `from_dlpack` does so."""
    cuda = torch_module().cuda
    current, default = cuda.current_stream(), cuda.default_stream()
    if current != default:
        current.wait_stream(default)
