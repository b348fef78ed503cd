"""The driver's linker, which assembles PTX and gives the machine code away."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_size_t, c_void_p
from typing import Any, Protocol

from dovetail.errors import DeviceError

_PTX_INPUT = 1
_LOG, _LOG_BYTES = 5, 6
"""Options: a buffer for messages, and the size of that."""


class Calls(Protocol):
    """The driver in the context of a device."""

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function, and raise its error."""
        ...

    def quietly(self, name: str, *arguments: Any) -> None:
        """Call a function, and ignore its errors."""
        ...


def linked(driver: Calls, ptx: str) -> bytes:
    """PTX as machine code of a device; other threads run meanwhile."""
    log = ctypes.create_string_buffer(4096)
    options = (c_int * 2)(_LOG, _LOG_BYTES)
    values = (c_void_p * 2)(ctypes.addressof(log), len(log))
    state, code, size = c_void_p(), c_void_p(), c_size_t()
    driver.call("cuLinkCreate_v2", 2, options, values, ctypes.byref(state))
    try:
        text = ptx.encode() + b"\0"
        driver.call("cuLinkAddData_v2", state, _PTX_INPUT, text, len(text), b"kernel", 0, None, None)
        driver.call("cuLinkComplete", state, ctypes.byref(code), ctypes.byref(size))
        return ctypes.string_at(code.value or 0, size.value)
    except DeviceError as error:
        if error.is_lost:
            raise
        said = log.value.decode(errors="replace").strip()
        raise DeviceError(f"{error.message}: {said}", hint=error.hint) from None
    finally:
        driver.quietly("cuLinkDestroy", state)


__all__ = ["linked"]
