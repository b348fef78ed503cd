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

from dovetail.targets.cpu.jit import Compiled, compile_text, define
from dovetail.targets.runtime.repeated_call import Write
from dovetail.torch.python_function import ARGUMENTS_AS_ARRAY, Method, api_address, python_function
from dovetail.torch.tensor_words import TensorWords, tensor_words

_POINTER, _BOOL = "PyLong_AsVoidPtr", "PyBool_FromLong"
"""Functions of Python that the compiled code calls."""


def _text(words: TensorWords) -> str:
    return f"""
%record = type {{ i64, i64, ptr, i64, ptr }}
%weight = type {{ i64, i64, ptr, i64 }}
%write = type {{ i64, i64, ptr, i64 }}
declare ptr @{_POINTER}(ptr)
declare ptr @{_BOOL}(i64)

define internal i64 @address(ptr %object, i64 %size) {{
entry:
  %tensor.at = getelementptr i8, ptr %object, i64 {words.tensor}
  %tensor = load ptr, ptr %tensor.at
  %storage.at = getelementptr i8, ptr %tensor, i64 {words.storage}
  %storage = load ptr, ptr %storage.at
  %is.none = icmp eq ptr %storage, null
  br i1 %is.none, label %end, label %read
read:
  %data.at = getelementptr i8, ptr %storage, i64 {words.data}
  %data = load i64, ptr %data.at
  %first.at = getelementptr i8, ptr %tensor, i64 {words.first}
  %first = load i64, ptr %first.at
  %offset = mul i64 %first, %size
  %address = add i64 %data, %offset
  br label %end
end:
  %found = phi i64 [ 0, %entry ], [ %address, %read ]
  ret i64 %found
}}

define ptr @stay(ptr %self, ptr %given, i64 %number) {{
entry:
  %record = call ptr @{_POINTER}(ptr %self)
  %wanted = load i64, ptr %record
  %count.at = getelementptr %record, ptr %record, i64 0, i32 1
  %count = load i64, ptr %count.at
  %weights.at = getelementptr %record, ptr %record, i64 0, i32 2
  %weights = load ptr, ptr %weights.at
  %is.number = icmp eq i64 %number, %wanted
  br i1 %is.number, label %check, label %end
check:
  %i = phi i64 [ 0, %entry ], [ %after, %compare ]
  %are.checked = icmp eq i64 %i, %count
  br i1 %are.checked, label %write, label %look
look:
  %weight = getelementptr %weight, ptr %weights, i64 %i
  %index = load i64, ptr %weight
  %own.at = getelementptr ptr, ptr %given, i64 %index
  %own = load ptr, ptr %own.at
  %object.at = getelementptr %weight, ptr %weight, i64 0, i32 2
  %object = load ptr, ptr %object.at
  %is.object = icmp eq ptr %own, %object
  br i1 %is.object, label %compare, label %end
compare:
  %size.at = getelementptr %weight, ptr %weight, i64 0, i32 1
  %size = load i64, ptr %size.at
  %now = call i64 @address(ptr %own, i64 %size)
  %start.at = getelementptr %weight, ptr %weight, i64 0, i32 3
  %start = load i64, ptr %start.at
  %after = add i64 %i, 1
  %is.start = icmp eq i64 %now, %start
  br i1 %is.start, label %check, label %end
write:
  %writes.count.at = getelementptr %record, ptr %record, i64 0, i32 3
  %writes.count = load i64, ptr %writes.count.at
  %writes.at = getelementptr %record, ptr %record, i64 0, i32 4
  %writes = load ptr, ptr %writes.at
  br label %next
next:
  %j = phi i64 [ 0, %write ], [ %j.after, %put ]
  %are.written = icmp eq i64 %j, %writes.count
  br i1 %are.written, label %end, label %put
put:
  %row = getelementptr %write, ptr %writes, i64 %j
  %other = load i64, ptr %row
  %tensor.at = getelementptr ptr, ptr %given, i64 %other
  %tensor = load ptr, ptr %tensor.at
  %element.at = getelementptr %write, ptr %row, i64 0, i32 1
  %element = load i64, ptr %element.at
  %first = call i64 @address(ptr %tensor, i64 %element)
  %offset.at = getelementptr %write, ptr %row, i64 0, i32 3
  %offset = load i64, ptr %offset.at
  %argument = add i64 %first, %offset
  %argument.at.at = getelementptr %write, ptr %row, i64 0, i32 2
  %argument.at = load ptr, ptr %argument.at.at
  store i64 %argument, ptr %argument.at
  %j.after = add i64 %j, 1
  br label %next
end:
  %found = phi i64 [ 0, %entry ], [ 0, %look ], [ 0, %compare ], [ 1, %next ]
  %answer = call ptr @{_BOOL}(i64 %found)
  ret ptr %answer
}}
"""


class _Record(Structure):
    """What the compiled code reads."""

    _fields_ = (
        ("number", c_int64),
        ("count", c_int64),
        ("weights", c_void_p),
        ("writes_count", c_int64),
        ("writes", c_void_p),
    )


class Stay:
    """Weights by their indices among some arguments, and the launch arguments that point into others of them."""

    def __init__(self, weights: Mapping[int, Any], given: Sequence[Any], writes: Sequence[Write]) -> None:
        words = tensor_words()
        assert words is not None, "can_stay"
        weight_rows = [(i, w.element_size(), id(w), words.address(w)) for i, w in weights.items()]
        write_rows = [(w.index, given[w.index].element_size(), w.at, w.offset) for w in writes]
        self._weights = np.array(weight_rows, np.int64).reshape(-1, 4)
        self._writes = np.array(write_rows, np.int64).reshape(-1, 4)
        self._record = _Record(
            len(given), len(weight_rows), self._weights.ctypes.data, len(write_rows), self._writes.ctypes.data
        )
        # An object that takes the place of a weight that is gone may be none that has an address.
        self._alive = [weakref.ref(w, self._forget) for w in weights.values()]

    def test(self) -> Callable[..., bool]:
        """Tells of such arguments whether the weights among them are the same objects at the same addresses.

        If they are, the addresses of others are written; those must be tensors with the dtypes of the given ones.
        """
        made = _method()
        assert made is not None, "can_stay"
        return python_function(made[1], ctypes.addressof(self._record), self)

    def _forget(self, _: object) -> None:
        self._record.number = -1


def can_stay() -> bool:
    """Whether tensors and Python have what the compiled code reads and calls."""
    return tensor_words() is not None and all(map(api_address, (_POINTER, _BOOL)))


def is_compiled() -> bool:
    """Whether the code is there: LLVM compiles it on a thread of its own from the first time that this is asked.

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
