"""Where a tensor keeps the address of its elements: words that compiled code reads in place of a call into torch.

torch has a function for it, which reads three times as many cache lines; between two calls of dynamo they are cold.
The words are found in sample tensors, whose addresses torch tells, and nothing is read where they are not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ctypes import c_int64
from functools import cache
from typing import Any

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.frontends.torch.reading.package import torch_module

_HEADER: int = object.__basicsize__
_WORD = 8
_MOST_OF_TENSOR, _MOST_OF_STORAGE = 176, 64
"""Bytes of torch's own objects that are searched; both are larger."""


@dataclass(frozen=True, slots=True)
class TensorWords:
    """Offsets in bytes: an object of Python points to a tensor, that to a storage, that to its first byte."""

    tensor: int
    storage: int
    first: int
    """In the tensor: the index of its first element in the storage."""
    data: int

    def address(self, tensor: Any) -> int:
        """Return the address of the first element, as compiled code reads it; 0 without a storage."""
        own = _word(id(tensor) + self.tensor)
        storage = _word(own + self.storage)
        return _word(storage + self.data) + _word(own + self.first) * tensor.element_size() if storage else 0


@cache
def tensor_words() -> TensorWords | None:
    """Return the words of this torch; None where they are not at the expected places."""
    samples = _samples()
    tensors, storages = [t._cdata for t in samples], [t.untyped_storage()._cdata for t in samples]
    size = torch_module().Tensor.__basicsize__
    offsets = (
        _only(size, map(id, samples), tensors, after=_HEADER),
        _only(_MOST_OF_TENSOR, tensors, storages),
        _only(_MOST_OF_TENSOR, tensors, [t.storage_offset() for t in samples]),
        _only(_MOST_OF_STORAGE, storages, [t.untyped_storage().data_ptr() for t in samples]),
    )
    tensor, storage, first, data = offsets
    if tensor is None or storage is None or first is None or data is None:
        return None
    words = TensorWords(tensor, storage, first, data)
    return words if _follows(words, samples) else None


def _samples() -> list[Any]:
    """Tensors of which no two words that matter are always the same."""
    torch = torch_module()
    floats = torch.arange(64, dtype=torch.float32, device="cpu")
    # A storage that torch has not allocated has its data and what frees them at two addresses.
    doubles = torch.from_numpy(np.arange(32, dtype=np.float64))
    return [floats, floats[3:], torch.nn.Parameter(floats[5:7]), floats.view(torch.uint8)[77:], doubles, doubles[2:9]]


def _only(size: int, starts: Iterable[int], words: Iterable[int], after: int = 0) -> int | None:
    """Return the only offset at which each of some objects has the expected word."""
    pairs = [*zip(starts, words, strict=True)]
    offsets = [at for at in range(after, size, _WORD) if all(_word(start + at) == word for start, word in pairs)]
    return offsets[0] if len(offsets) == 1 else None


def _follows(words: TensorWords, samples: Iterable[Any]) -> bool:
    """Return whether the words are right, and still are after all that moves a tensor."""
    torch = torch_module()
    other = torch.arange(500, dtype=torch.float64, device="cpu")
    moves: tuple[Callable[[Any], Any], ...] = (
        lambda t: None,
        lambda t: t.resize_(1000),
        lambda t: t.set_(other.to(t.dtype)[7:]),
        lambda t: setattr(t, "data", other.to(t.dtype)[11:]),
    )
    with torch.no_grad():
        for sample in samples:
            tensor = sample.detach().clone()
            for move in moves:
                move(tensor)
                if words.address(tensor) != tensor.data_ptr():
                    return False
    return all(words.address(sample) == sample.data_ptr() for sample in samples)


def _word(address: int) -> int:
    return c_int64.from_address(address).value


__all__ = ["TensorWords", "tensor_words"]
