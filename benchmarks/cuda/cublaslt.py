"""cuBLASLt through ctypes, as a peer: a product of matrices by the fastest of the algorithms that it proposes."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Iterator
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

VERSIONS = ("13", "12")
PROPOSED = 8
"""Algorithms that it is asked for."""
WORKSPACE_BYTES = 64 << 20
_COMPUTE_F32, _F32 = 68, 0
_KINDS = {"f32": 0, "f16": 2, "bf16": 14}
_MAX_WORKSPACE = 1
"""A preference: the bytes of workspace that an algorithm may take."""


class _Result(Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, and what it takes."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("status", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (POINTER(c_void_p),),
    "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "cublasLtMatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
    "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoGetHeuristic": (*[c_void_p] * 7, c_int, c_void_p, POINTER(c_int)),
    "cublasLtMatmul": (*[c_void_p] * 14, c_size_t, c_void_p),
}


class Missing(Exception):
    """The library is not there, or it refuses a product."""


def _places() -> Iterator[str]:
    names = [f"libcublasLt.so.{version}" for version in VERSIONS]
    yield from names  # torch may have loaded it
    for package in ("nvidia.cublas", "nvidia.cu13", "torch"):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in found.submodule_search_locations or () if found is not None else ():
            yield from (str(Path(folder) / "lib" / name) for name in names)


class Library:
    """The library with a handle."""

    def __init__(self) -> None:
        for place in _places():
            try:
                self.functions = ctypes.CDLL(place)
            except OSError:
                continue
            break
        else:
            raise Missing("cuBLASLt is not installed: the wheel nvidia-cublas has it")
        for name, kinds in _SIGNATURES.items():
            getattr(self.functions, name).argtypes = kinds
        self.handle = self.made("cublasLtCreate")

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.functions, name)(*arguments)
        if status:
            raise Missing(f"{name}: status {status}")

    def made(self, name: str, *arguments: Any) -> c_void_p:
        """What a function creates."""
        found = c_void_p()
        self.call(name, byref(found), *arguments)
        return found


class Product:
    """x @ w for dense arrays with rows of x by columns of w, in one dtype; sums are in f32."""

    def __init__(self, library: Library, rows: int, depth: int, columns: int, kind: str) -> None:
        self.library = library
        self.desc = library.made("cublasLtMatmulDescCreate", _COMPUTE_F32, _F32)
        # It has columns one after the other: a dense array of rows is the transposed matrix there, and so is y = x @ w.
        shapes = ((columns, depth), (depth, rows), (columns, rows))
        self.w, self.x, self.y = (
            library.made("cublasLtMatrixLayoutCreate", _KINDS[kind], first, second, first) for first, second in shapes
        )
        preference = library.made("cublasLtMatmulPreferenceCreate")
        most = c_size_t(WORKSPACE_BYTES)
        library.call("cublasLtMatmulPreferenceSetAttribute", preference, _MAX_WORKSPACE, byref(most), 8)
        results, count = (_Result * PROPOSED)(), c_int()
        library.call(
            "cublasLtMatmulAlgoGetHeuristic",
            *(library.handle, self.desc, self.w, self.x, self.y, self.y, preference),
            *(PROPOSED, results, byref(count)),
        )
        self.algorithms = [r for r in results[: count.value] if r.status == 0]
        if not self.algorithms:
            raise Missing(f"no algorithm for {rows}x{depth}x{columns} in {kind}")

    def enqueue(self, algorithm: _Result, x: int, w: int, y: int, workspace: int, stream: int) -> None:
        """Launch it on arrays at these addresses."""
        one, zero = c_float(1.0), c_float(0.0)
        self.library.call(
            "cublasLtMatmul",
            *(self.library.handle, self.desc, byref(one), w, self.w, x, self.x, byref(zero), y, self.y, y, self.y),
            *(ctypes.addressof(algorithm.algorithm), workspace, WORKSPACE_BYTES, stream),
        )


def product(torch: Any, x: Any, w: Any, graphed: Callable[..., Any], timed: Callable[..., float]) -> tuple[Any, Any]:
    """The fastest algorithm in a CUDA graph, and the tensor that it writes; x and w are tensors of torch."""
    kind = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[x.dtype]
    (rows, depth), columns = x.shape, w.shape[1]
    made = Product(Library(), rows, depth, columns, kind)
    y = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=x.device)

    def step(algorithm: _Result) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        made.enqueue(algorithm, x.data_ptr(), w.data_ptr(), y.data_ptr(), workspace.data_ptr(), stream)

    found: list[tuple[float, int, Any]] = []
    for number, algorithm in enumerate(made.algorithms):
        replay = graphed(torch, lambda algorithm=algorithm: step(algorithm))
        replay()
        found.append((timed(torch, replay, 50), number, replay))
    best = min(found)[2]
    return partial(_replayed, best, (workspace, x, w)), y


def _replayed(replay: Callable[[], Any], _: tuple[Any, ...]) -> None:
    """Replay a graph; the arrays that it reads stay as long as this."""
    replay()


__all__ = ["Library", "Missing", "Product", "product"]
