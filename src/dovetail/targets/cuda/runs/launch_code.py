"""Compiled code that updates the nodes of a graph and launches it, as a function of Python.

LLVM compiles it on a thread of its own once a run comes again: a first call, and one from the cache, do without LLVM.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import Structure, c_int, c_int64, c_void_p
from typing import Any

REFUSED = -1
"""The status of a launch that did not begin, because a kernel of an earlier one has refused its operands."""
_UNLOCK, _LOCK, _POINTER, _NUMBER = "PyEval_SaveThread", "PyEval_RestoreThread", "PyLong_AsVoidPtr", "PyLong_FromLong"
"""Functions of Python that the compiled code calls."""
_ONE_ARGUMENT = 8
"""METH_O: a function of Python that takes one object."""

_TEXT = f"""
%record = type {{ ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, i64 }}
%node = type {{ ptr, ptr, i64 }}
declare ptr @{_POINTER}(ptr)
declare ptr @{_NUMBER}(i64)
declare ptr @{_UNLOCK}()
declare void @{_LOCK}(ptr)

define ptr @replay(ptr %self, ptr %argument) {{
entry:
  %record = call ptr @{_POINTER}(ptr %argument)
  %flag.at = getelementptr %record, ptr %record, i64 0, i32 3
  %flag = load ptr, ptr %flag.at
  %refused = load volatile i64, ptr %flag
  %is.refused = icmp ne i64 %refused, 0
  br i1 %is.refused, label %no, label %yes
no:
  %minus = call ptr @{_NUMBER}(i64 {REFUSED})
  ret ptr %minus
yes:
  %thread = call ptr @{_UNLOCK}()
  %context = load ptr, ptr %record
  %graph.at = getelementptr %record, ptr %record, i64 0, i32 1
  %graph = load ptr, ptr %graph.at
  %stream.at = getelementptr %record, ptr %record, i64 0, i32 2
  %stream = load ptr, ptr %stream.at
  %set.at = getelementptr %record, ptr %record, i64 0, i32 4
  %set = load ptr, ptr %set.at
  %update.at = getelementptr %record, ptr %record, i64 0, i32 5
  %update = load ptr, ptr %update.at
  %launch.at = getelementptr %record, ptr %record, i64 0, i32 6
  %launch = load ptr, ptr %launch.at
  %nodes.at = getelementptr %record, ptr %record, i64 0, i32 7
  %nodes = load ptr, ptr %nodes.at
  %count.at = getelementptr %record, ptr %record, i64 0, i32 8
  %count = load i64, ptr %count.at
  %ignored = call i32 %set(ptr %context)
  br label %check
check:
  %index = phi i64 [ 0, %yes ], [ %after, %next ]
  %is.done = icmp eq i64 %index, %count
  br i1 %is.done, label %enqueue, label %look
look:
  %changed.at = getelementptr %node, ptr %nodes, i64 %index, i32 2
  %changed = load i64, ptr %changed.at
  %is.same = icmp eq i64 %changed, 0
  br i1 %is.same, label %next, label %write
write:
  %node.at = getelementptr %node, ptr %nodes, i64 %index, i32 0
  %node = load ptr, ptr %node.at
  %params.at = getelementptr %node, ptr %nodes, i64 %index, i32 1
  %params = load ptr, ptr %params.at
  %updated = call i32 %update(ptr %graph, ptr %node, ptr %params)
  %is.updated = icmp eq i32 %updated, 0
  br i1 %is.updated, label %written, label %end
written:
  store i64 0, ptr %changed.at
  br label %next
next:
  %after = add i64 %index, 1
  br label %check
enqueue:
  %launched = call i32 %launch(ptr %graph, ptr %stream)
  br label %end
end:
  %status = phi i32 [ %updated, %write ], [ %launched, %enqueue ]
  call void @{_LOCK}(ptr %thread)
  %wide = sext i32 %status to i64
  %found = call ptr @{_NUMBER}(i64 %wide)
  ret ptr %found
}}
"""


class Record(Structure):
    """What the compiled code reads: the graph, the functions of the driver, and the nodes whose arguments change."""

    _fields_ = (
        ("context", c_void_p),
        ("graph", c_void_p),
        ("stream", c_void_p),
        ("flag", c_void_p),
        ("set_current", c_void_p),
        ("update", c_void_p),
        ("launch", c_void_p),
        ("nodes", c_void_p),
        ("count", c_int64),
    )


class Node(Structure):
    """A node, and whether its arguments have changed since the graph was updated."""

    _fields_ = (("node", c_void_p), ("params", c_void_p), ("changed", c_int64))


class _Method(Structure):
    """PyMethodDef."""

    _fields_ = (("name", ctypes.c_char_p), ("function", c_void_p), ("flags", c_int), ("doc", ctypes.c_char_p))


class LaunchCode:
    """The compiled code of this process, once it is there."""

    def __init__(self) -> None:
        self.function: Callable[[int], int] | None = None
        """Takes the address of a record; gives the driver's status, or REFUSED."""
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._referenced: tuple[Any, ...] = ()

    def start(self) -> None:
        """Compile it, unless that has begun."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._compile, name="cuda launch code")
                self._thread.start()

    def wait(self) -> None:
        """Wait until what has begun is done."""
        if self._thread is not None:
            self._thread.join()

    def _compile(self) -> None:
        from dovetail.targets.cpu.jit import compile_text, define

        for name in (_UNLOCK, _LOCK, _POINTER, _NUMBER):
            if not hasattr(ctypes.pythonapi, name):
                return
            define(name, ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p).value or 0)
        code = compile_text(_TEXT, vectorize=False, optimize=False)
        method = _Method(b"replay", code.address("replay"), _ONE_ARGUMENT, None)
        prototype: Any = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, c_void_p, c_void_p)
        new = prototype(("PyCFunction_NewEx", ctypes.pythonapi))
        self._referenced = code, method
        self.function = new(ctypes.addressof(method), None, None)


launch_code = LaunchCode()
"""That of this process."""

__all__ = ["REFUSED", "LaunchCode", "Node", "Record", "launch_code"]
