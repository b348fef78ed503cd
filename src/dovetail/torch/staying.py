"""Whether the weights of a graph are where they were: one call of compiled code for all of them.

Asked from Python, a hundred weights take as long as a small graph. The compiled code compares objects before it asks
torch for the address of one, in the function that torch's own compiled code calls.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import Structure, c_char_p, c_int, c_int64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from dovetail.frontends.torch.reading.package import torch_module
from dovetail.targets.cpu.jit import Compiled, compile_text, define

_POINTER, _BOOL = "PyLong_AsVoidPtr", "PyBool_FromLong"
"""Functions of Python that the compiled code calls."""
_ARGUMENTS_AS_ARRAY = 0x80
"""METH_FASTCALL: a function of Python that takes the address of its arguments, and how many there are."""

_TEXT = f"""
%record = type {{ ptr, i64, i64, ptr }}
%weight = type {{ i64, ptr, ptr }}
declare ptr @{_POINTER}(ptr)
declare ptr @{_BOOL}(i64)

define ptr @stay(ptr %self, ptr %given, i64 %number) {{
entry:
  %record = call ptr @{_POINTER}(ptr %self)
  %address = load ptr, ptr %record
  %number.at = getelementptr %record, ptr %record, i64 0, i32 1
  %wanted = load i64, ptr %number.at
  %count.at = getelementptr %record, ptr %record, i64 0, i32 2
  %count = load i64, ptr %count.at
  %weights.at = getelementptr %record, ptr %record, i64 0, i32 3
  %weights = load ptr, ptr %weights.at
  %is.number = icmp eq i64 %number, %wanted
  br i1 %is.number, label %check, label %end
check:
  %i = phi i64 [ 0, %entry ], [ %after, %next ]
  %is.done = icmp eq i64 %i, %count
  br i1 %is.done, label %end, label %look
look:
  %index.at = getelementptr %weight, ptr %weights, i64 %i, i32 0
  %index = load i64, ptr %index.at
  %own.at = getelementptr ptr, ptr %given, i64 %index
  %own = load ptr, ptr %own.at
  %object.at = getelementptr %weight, ptr %weights, i64 %i, i32 1
  %object = load ptr, ptr %object.at
  %is.object = icmp eq ptr %own, %object
  br i1 %is.object, label %ask, label %end
ask:
  %now = call ptr %address(ptr %own)
  %start.at = getelementptr %weight, ptr %weights, i64 %i, i32 2
  %start = load ptr, ptr %start.at
  %is.start = icmp eq ptr %now, %start
  br i1 %is.start, label %next, label %end
next:
  %after = add i64 %i, 1
  br label %check
end:
  %found = phi i64 [ 0, %entry ], [ 1, %check ], [ 0, %look ], [ 0, %ask ]
  %answer = call ptr @{_BOOL}(i64 %found)
  ret ptr %answer
}}
"""


class _Record(Structure):
    """What the compiled code reads."""

    _fields_ = (("address", c_void_p), ("number", c_int64), ("count", c_int64), ("weights", c_void_p))


class _Method(Structure):
    """PyMethodDef."""

    _fields_ = (("name", c_char_p), ("function", c_void_p), ("flags", c_int), ("doc", c_char_p))


class Stay:
    """Weights by their indices among a number of arguments, and the addresses of all arguments."""

    def __init__(self, weights: Mapping[int, Any], starts: Sequence[int], number: int) -> None:
        self._rows = np.array([(i, id(w), starts[i]) for i, w in weights.items()], np.int64).reshape(-1, 3)
        self._record = _Record(_address_function(), number, len(weights), self._rows.ctypes.data)
        # An object that takes the place of a weight that is gone may be none that has an address.
        self._alive = [weakref.ref(w, self._forget) for w in weights.values()]

    def test(self) -> Callable[..., bool]:
        """Tells of such arguments whether the weights among them are the same objects at the same addresses."""
        # What a function of Python has as its module, it keeps alive.
        return _new()(ctypes.addressof(_method()[1]), ctypes.addressof(self._record), self)

    def _forget(self, _: object) -> None:
        self._record.number = -1


def can_stay() -> bool:
    """Whether torch and Python have what the compiled code calls."""
    return _address_function() != 0 and all(hasattr(ctypes.pythonapi, name) for name in (_POINTER, _BOOL))


@cache
def _address_function() -> int:
    """torch's function from a tensor to the address of its first element; 0 where torch has none."""
    try:
        return int(torch_module("torch._C._dynamo.guards")._torchinductor_pyobject_tensor_data_ptr)
    except (AttributeError, ImportError):
        return 0


def is_compiled() -> bool:
    """Whether the code is there: LLVM compiles it on a thread of its own from the first time that this is asked."""
    return not _compiling().is_alive()


@cache
def _compiling() -> threading.Thread:
    thread = threading.Thread(target=_method, name="test of weights")
    thread.start()
    return thread


@cache
def _new() -> Any:
    """Makes a function of Python from a method, what it is given as itself, and its module."""
    made: Any = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.py_object, ctypes.py_object)
    return made(("PyCFunction_NewEx", ctypes.pythonapi))


@cache
def _method() -> tuple[Compiled, _Method]:
    for name in (_POINTER, _BOOL):
        define(name, ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p).value or 0)
    code = compile_text(_TEXT, vectorize=False, optimize=False)
    return code, _Method(b"stay", code.address("stay"), _ARGUMENTS_AS_ARRAY, None)


__all__ = ["Stay", "can_stay", "is_compiled"]
