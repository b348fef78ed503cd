"""Functions of Python around machine code, made without a compiler of C."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import Structure, c_char_p, c_int, c_void_p
from functools import cache
from typing import Any

ARGUMENTS_AS_ARRAY = 0x80
"""METH_FASTCALL: the code is given the address of the arguments, and how many there are."""
_ARGUMENTS_AS_TUPLE = 0x1
"""METH_VARARGS."""


class Method(Structure):
    """PyMethodDef: it must live as long as the functions that are made from it."""

    _fields_ = (("name", c_char_p), ("function", c_void_p), ("flags", c_int), ("doc", c_char_p))


def python_function(method: Method, own: Any, kept: Any) -> Callable[..., Any]:
    """Return a function that gives the code an object in addition to the arguments, and keeps another one alive."""
    # What a function of Python has as its module, it keeps alive.
    return _new()(ctypes.addressof(method), own, kept)


def with_arguments_as_tuple(run: Callable[[tuple[Any, ...]], Any]) -> Callable[..., Any]:
    """Return a function of any number of arguments that passes them on as a tuple.

    One that is written in Python copies the arguments of a caller that has a tuple; of a hundred, that takes as long as
    a small kernel.
    """
    return python_function(_one_argument(), run, None)


def api_address(name: str) -> int:
    """Return the address of a function of Python's C API; 0 for none."""
    function = getattr(ctypes.pythonapi, name, None)
    return 0 if function is None else ctypes.cast(function, c_void_p).value or 0


@cache
def _one_argument() -> Method:
    # It takes an object to call and an argument: of a method's code these are its own object and the tuple.
    return Method(b"graph", api_address("PyObject_CallOneArg"), _ARGUMENTS_AS_TUPLE, None)


@cache
def _new() -> Any:
    create: Any = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.py_object, ctypes.py_object)
    return create(("PyCFunction_NewEx", ctypes.pythonapi))


__all__ = ["ARGUMENTS_AS_ARRAY", "Method", "api_address", "python_function", "with_arguments_as_tuple"]
