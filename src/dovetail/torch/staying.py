"""Whether the weights of a graph are where they were, and where its other tensors are: one call of compiled code.

Asked from Python, a hundred weights take as long as a small graph. The compiled code compares objects before it reads
the address of one, and writes the addresses of other tensors into launch arguments.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import Structure, c_int64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from dovetail.ir.literal import Array
from dovetail.targets.cpu.jit import Compiled, compile_text, define
from dovetail.targets.runtime.calls.repeated_call import AddressWrite
from dovetail.torch.python_function import ARGUMENTS_AS_ARRAY, Method, api_address, python_function
from dovetail.torch.tensor_words import TensorWords, tensor_words

_POINTER, _BOOL = "PyLong_AsVoidPtr", "PyBool_FromLong"
"""Functions of Python that the compiled code calls."""


def _address(words: TensorWords, of: str, size: str) -> str:
    """Lines that find the address of an object with elements of a size; without a storage they go to the end."""
    return f"""
  %{of}.tensor.at = getelementptr i8, ptr %{of}, i64 {words.tensor}
  %{of}.tensor = load ptr, ptr %{of}.tensor.at
  %{of}.storage.at = getelementptr i8, ptr %{of}.tensor, i64 {words.storage}
  %{of}.storage = load ptr, ptr %{of}.storage.at
  %{of}.is.none = icmp eq ptr %{of}.storage, null
  br i1 %{of}.is.none, label %end, label %{of}.read
{of}.read:
  %{of}.data.at = getelementptr i8, ptr %{of}.storage, i64 {words.data}
  %{of}.data = load i64, ptr %{of}.data.at
  %{of}.first.at = getelementptr i8, ptr %{of}.tensor, i64 {words.first}
  %{of}.first = load i64, ptr %{of}.first.at
  %{of}.offset = mul i64 %{of}.first, %{size}
  %{of}.address = add i64 %{of}.data, %{of}.offset
""".strip()


def _text(words: TensorWords) -> str:
    # Objects are compared first: the fewer instructions there are for one weight, the more weights a processor has
    # under way while it waits for memory.
    return f"""
%record = type {{ i64, i64, ptr, ptr, i64, ptr }}
%weight = type {{ ptr, i64, i64 }}
%write = type {{ i64, i64, ptr, i64 }}
declare ptr @{_POINTER}(ptr)
declare ptr @{_BOOL}(i64)

define ptr @stay(ptr %self, ptr %given, i64 %number) {{
entry:
  %record = call ptr @{_POINTER}(ptr %self)
  %wanted = load i64, ptr %record
  %count.at = getelementptr %record, ptr %record, i64 0, i32 1
  %count = load i64, ptr %count.at
  %indices.at = getelementptr %record, ptr %record, i64 0, i32 2
  %indices = load ptr, ptr %indices.at
  %weights.at = getelementptr %record, ptr %record, i64 0, i32 3
  %weights = load ptr, ptr %weights.at
  %is.number = icmp eq i64 %number, %wanted
  br i1 %is.number, label %objects, label %end
objects:
  %i = phi i64 [ 0, %entry ], [ %i.after, %look ]
  %are.looked.at = icmp eq i64 %i, %count
  br i1 %are.looked.at, label %addresses, label %look
look:
  %index.at = getelementptr i64, ptr %indices, i64 %i
  %index = load i64, ptr %index.at
  %own.at = getelementptr ptr, ptr %given, i64 %index
  %own = load ptr, ptr %own.at
  %wanted.at = getelementptr %weight, ptr %weights, i64 %i
  %object = load ptr, ptr %wanted.at
  %i.after = add i64 %i, 1
  %is.object = icmp eq ptr %own, %object
  br i1 %is.object, label %objects, label %end
addresses:
  %j = phi i64 [ 0, %objects ], [ %j.after, %weight.read ]
  %are.asked = icmp eq i64 %j, %count
  br i1 %are.asked, label %writes, label %ask
ask:
  %weight.at = getelementptr %weight, ptr %weights, i64 %j
  %weight = load ptr, ptr %weight.at
  %size.at = getelementptr %weight, ptr %weight.at, i64 0, i32 1
  %size = load i64, ptr %size.at
  {_address(words, "weight", "size")}
  %start.at = getelementptr %weight, ptr %weight.at, i64 0, i32 2
  %start = load i64, ptr %start.at
  %j.after = add i64 %j, 1
  %is.start = icmp eq i64 %weight.address, %start
  br i1 %is.start, label %addresses, label %end
writes:
  %writes.count.at = getelementptr %record, ptr %record, i64 0, i32 4
  %writes.count = load i64, ptr %writes.count.at
  %writes.at = getelementptr %record, ptr %record, i64 0, i32 5
  %rows = load ptr, ptr %writes.at
  br label %next
next:
  %k = phi i64 [ 0, %writes ], [ %k.after, %other.read ]
  %are.written = icmp eq i64 %k, %writes.count
  br i1 %are.written, label %end, label %write
write:
  %row = getelementptr %write, ptr %rows, i64 %k
  %position = load i64, ptr %row
  %other.at = getelementptr ptr, ptr %given, i64 %position
  %other = load ptr, ptr %other.at
  %element.at = getelementptr %write, ptr %row, i64 0, i32 1
  %element = load i64, ptr %element.at
  {_address(words, "other", "element")}
  %distance.at = getelementptr %write, ptr %row, i64 0, i32 3
  %distance = load i64, ptr %distance.at
  %argument = add i64 %other.address, %distance
  %argument.at.at = getelementptr %write, ptr %row, i64 0, i32 2
  %argument.at = load ptr, ptr %argument.at.at
  store i64 %argument, ptr %argument.at
  %k.after = add i64 %k, 1
  br label %next
end:
  %found = phi i64 [ 0, %entry ], [ 0, %look ], [ 0, %ask ], [ 0, %weight.read ], [ 0, %write ], [ 1, %next ]
  %answer = call ptr @{_BOOL}(i64 %found)
  ret ptr %answer
}}
"""


class _Record(Structure):
    """What the compiled code reads."""

    _fields_ = (
        ("number", c_int64),
        ("count", c_int64),
        ("indices", c_void_p),
        ("weights", c_void_p),
        ("writes_count", c_int64),
        ("writes", c_void_p),
    )


class Stay:
    """Weights by their indices among some arguments, and the launch arguments that point into others of them."""

    def __init__(self, weights: Mapping[int, Any], feeds: Sequence[Any], writes: Sequence[AddressWrite]) -> None:
        words = tensor_words()
        assert words is not None, "can_stay"
        self._indices = np.array([*weights], np.int64)
        self._weights = _rows([(id(w), w.element_size(), words.address(w)) for w in weights.values()])
        self._writes = _rows([(w.index, feeds[w.index].element_size(), w.at, w.offset) for w in writes])
        at = [rows.ctypes.data for rows in (self._indices, self._weights, self._writes)]
        self._record = _Record(len(feeds), len(weights), at[0], at[1], len(writes), at[2])
        # An object that takes the place of a weight that is gone may be none that has an address.
        self._alive = [weakref.ref(w, self._forget) for w in weights.values()]

    def test(self) -> Callable[..., bool]:
        """Tells of such arguments whether the weights among them are the same objects at the same addresses.

        If they are, the addresses of others are written; those must be tensors with the dtypes of the given ones.
        """
        method = _method()
        assert method is not None, "can_stay"
        return python_function(method[1], ctypes.addressof(self._record), self)

    def _forget(self, _: object) -> None:
        self._record.number = -1


def _rows(rows: Sequence[tuple[int, ...]]) -> Array:
    return np.array(rows, np.int64)


def can_stay() -> bool:
    """Return whether tensors and Python have what the compiled code reads and calls."""
    return tensor_words() is not None and all(map(api_address, (_POINTER, _BOOL)))


def is_compiled() -> bool:
    """Return whether the code is there: the first call makes LLVM compile it on a thread of its own.

    There it looks at tensors too, and no mode of the caller changes how they are made.
    """
    return not _compiling().is_alive() and _method() is not None


@cache
def _compiling() -> threading.Thread:
    thread = threading.Thread(target=_method, name="test of weights")
    thread.start()
    return thread


@cache
def _method() -> tuple[Compiled, Method] | None:
    words = tensor_words()
    if words is None or not can_stay():
        return None
    for name in (_POINTER, _BOOL):
        define(name, api_address(name))
    code = compile_text(_text(words), vectorize=False, optimize=False)
    return code, Method(b"stay", code.address("stay"), ARGUMENTS_AS_ARRAY, None)


__all__ = ["Stay", "can_stay", "is_compiled"]
