"""Regions on tensors of a device: what a run writes to is written where the tensor is. Tensors are stand-ins here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dovetail.ir.literal import Array
from dovetail.kernels.spec import ALIGNMENT
from dovetail.torch import region_call
from dovetail.torch.region_call import DeviceRegionCall


class Tensor:
    """What a region asks of a tensor of a card, on memory of the host."""

    is_cuda = True

    def __init__(self, array: Array) -> None:
        self.array = array

    def detach(self) -> Tensor:
        return Tensor(self.array)

    def contiguous(self) -> Tensor:
        return self.detach() if self.array.flags.c_contiguous else self.clone()

    def clone(self) -> Tensor:
        return Tensor(aligned(self.array))

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def copy_(self, other: Tensor) -> None:
        self.array[...] = other.array


class Stream:
    """A stream that notes what it waits for."""

    def __init__(self) -> None:
        self.waited: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


def aligned(array: Array, off: int = 0) -> Array:
    """A copy whose address is a multiple of what kernels ask for, and some bytes."""
    raw = np.zeros(array.nbytes + 2 * ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT + off
    made = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def adding(fed: dict[str, Tensor], outputs: str) -> dict[str, Any]:
    """A program that adds 1 to its input where that is; it refuses what a run on a device refuses to overwrite."""
    assert outputs == "device" and fed["state"].array.flags.c_contiguous and fed["state"].data_ptr() % ALIGNMENT == 0
    fed["state"].array += 1
    return {"after": fed["state"]}


@pytest.mark.parametrize("is_side", [False, True], ids=["default stream", "side stream"])
@pytest.mark.parametrize("kind", ["plain", "not aligned", "not dense"])
def test_what_a_run_writes_to_is_written_where_it_is(kind: str, is_side: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    default, side = Stream(), Stream()
    cuda = SimpleNamespace(default_stream=lambda: default, current_stream=lambda: side if is_side else default)
    library = SimpleNamespace(cuda=cuda, from_dlpack=lambda array: array)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(region_call, "torch_module", lambda: library)
    whole = aligned(np.zeros((6, 8), np.float32), off=4 if kind == "not aligned" else 0)
    state = Tensor(whole[:, :3] if kind == "not dense" else whole)
    region: Any = SimpleNamespace(
        feeds=[SimpleNamespace(name="state", order=None, is_size=False)],
        writes=[SimpleNamespace(name="after", feed=0)],
        given=[],
    )
    program: Any = SimpleNamespace(run=adding)
    call = DeviceRegionCall(program, region)
    for count in (1, 2):
        assert list(call((state,))) == []
        assert (state.array == count).all()
    assert not default.waited and side.waited == [default] * (2 if is_side else 0)
