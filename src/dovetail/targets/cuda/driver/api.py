"""The functions of the CUDA driver that programs call, through ctypes, and its error codes as typed errors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import Structure, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from typing import Any, TypeAlias

from dovetail.errors import DeviceError, DovetailError, UnsupportedError
from dovetail.kernels.loops.persistent.stuck import wait_of

LIBRARY = "libcuda.so.1"
OLDEST = 12_000
"""The oldest driver: CUDA 12.0, whose PTX has Hopper and whose graphs can be updated node by node."""

OUT_OF_MEMORY = 2
_NO_DEVICE = frozenset({100, 101})
_TOO_OLD = frozenset({209, 222, 803, 804})
"""No image for the device, PTX newer than the driver, and a driver that does not fit its kernel module."""
_LOST = frozenset({4, 46, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999})
"""After these every call in the context fails: addresses that are not allocated, traps, hardware errors, a reset."""

STUCK = (
    ". A kernel of all layers stops like this where its blocks wait for each other for some five seconds; "
    "other programs on the device may keep some of them from running"
)
"""What a kernel means that says where a block waited in vain (docs/design/0026)."""

Functions: TypeAlias = Mapping[str, Callable[..., int]]
"""The driver's functions by name; each gives an error code."""


class KernelNodeParams(Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2: a launch as a node of a graph has it."""

    _fields_ = (
        ("function", c_void_p),
        *[(f"{kind}_{axis}", c_uint) for kind in ("grid", "block") for axis in "xyz"],
        ("shared_bytes", c_uint),
        ("arguments", c_void_p),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


class LaunchAttribute(Structure):
    """CUlaunchAttribute: a property of a launch by its number."""

    _fields_ = (("id", c_int), ("padding", c_int), ("value", c_int * 16))


class LaunchConfig(Structure):
    """CUlaunchConfig: a launch with attributes."""

    _fields_ = (
        *[(f"{kind}_{axis}", c_uint) for kind in ("grid", "block") for axis in "xyz"],
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", c_uint),
    )


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (c_void_p,),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetName": (c_void_p, c_int, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDeviceTotalMem_v2": (c_void_p, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuDevicePrimaryCtxReset_v2": (c_int,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuModuleLoadData": (c_void_p, c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (c_void_p, c_void_p, c_char_p),
    "cuLinkCreate_v2": (c_uint, c_void_p, c_void_p, c_void_p),
    "cuLinkAddData_v2": (c_void_p, c_int, c_char_p, c_size_t, c_char_p, c_uint, c_void_p, c_void_p),
    "cuLinkComplete": (c_void_p, c_void_p, c_void_p),
    "cuLinkDestroy": (c_void_p,),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemFree_v2": (c_void_p,),
    "cuMemGetInfo_v2": (c_void_p, c_void_p),
    "cuMemcpyHtoDAsync_v2": (c_void_p, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_void_p, c_void_p, c_size_t, c_void_p),
    "cuMemAllocHost_v2": (c_void_p, c_size_t),
    "cuMemFreeHost": (c_void_p,),
    "cuPointerGetAttribute": (c_void_p, c_int, c_uint64),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (c_void_p, c_void_p, c_int, c_size_t),
    "cuTensorMapEncodeTiled": (c_void_p, c_int, c_uint, *[c_void_p] * 5, *[c_int] * 4),
    "cuTensorMapEncodeIm2col": (c_void_p, c_int, c_uint, *[c_void_p] * 5, c_uint, c_uint, c_void_p, *[c_int] * 4),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamGetCaptureInfo_v2": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    "cuStreamGetCaptureInfo_v3": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    "cuStreamEndCapture": (c_void_p, c_void_p),
    "cuGraphInstantiateWithFlags": (c_void_p, c_void_p, c_ulonglong),
    "cuGraphExecKernelNodeSetParams_v2": (c_void_p, c_void_p, c_void_p),
    "cuGraphNodeSetEnabled": (c_void_p, c_void_p, c_uint),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphDestroy": (c_void_p,),
    "cuEventCreate": (c_void_p, c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventRecordWithFlags": (c_void_p, c_void_p, c_uint),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (c_void_p, c_void_p, c_void_p),
    "cuGetErrorString": (c_int, c_void_p),
}
NAMES = tuple(SIGNATURES)
LATER = frozenset({"cuStreamGetCaptureInfo_v3"})
"""Functions that the oldest driver lacks."""


def library() -> Functions:
    """The functions of the driver that is installed."""
    try:
        loaded = ctypes.CDLL(LIBRARY)
    except OSError as missing:
        raise UnsupportedError(f"there is no CUDA driver: {missing}", hint="install NVIDIA's driver") from None
    functions: dict[str, Callable[..., int]] = {}
    for name, kinds in SIGNATURES.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            if name in LATER:
                continue
            raise too_old(f"it has no {name}") from None
        function.argtypes, function.restype = kinds, c_int
        functions[name] = function
    return functions


def too_old(what: str) -> UnsupportedError:
    """The driver cannot run what we compile."""
    return UnsupportedError(
        f"the CUDA driver is too old: {what}",
        hint=f"install a driver of CUDA {OLDEST // 1000}.{OLDEST % 1000 // 10} or newer",
    )


def error_of(name: str, status: int, reason: str, stopped: int = 0) -> DovetailError:
    """The error of a function that gave an error code; `stopped` is what a kernel wrote before it stopped."""
    message = f"{name}: {reason} ({status})"
    if status in _NO_DEVICE:
        return UnsupportedError(f"there is no CUDA device: {message}", hint="see what `nvidia-smi` says")
    if status in _TOO_OLD:
        return too_old(message)
    if status in _LOST:
        wait = wait_of(stopped)
        return DeviceError(
            f"the device was lost: {message}" + ("" if wait is None else f": in a kernel of all layers {wait}"),
            is_lost=True,
            hint="bind the program again: a new context is made, and arrays of the old one are gone"
            + ("" if wait is None else STUCK),
        )
    return DeviceError(message, hint="see what `nvidia-smi` says of the device")


__all__ = [
    "LATER", "LIBRARY", "NAMES", "OLDEST", "OUT_OF_MEMORY", "SIGNATURES", "Functions", "KernelNodeParams",
    "LaunchAttribute", "LaunchConfig", "error_of", "library", "too_old",
]  # fmt: skip
