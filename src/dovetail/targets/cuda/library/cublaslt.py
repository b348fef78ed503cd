"""cuBLASLt through ctypes: a product of matrices by one of the algorithms that the library proposes.

The library is optional: the wheel nvidia-cublas has it, and so has torch for CUDA. Nothing is loaded before the first
use. Its matrices have columns one after the other, each `leading` elements after the one before.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import POINTER, Structure, byref, c_double, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, bf16, f16, f32, f64

VERSIONS = (13, 12)
"""Of CUDA, the newest first."""
PACKAGES = ("nvidia.cu13", "nvidia.cublas", "torch")
"""Packages with the library in their folder `lib`; torch is located and not imported."""
INSTALL = "pip install 'dovetail-ml[cublas]'"
ALGORITHM_WORDS = 8
"""Of 64 bits, of the record of an algorithm."""
PROPOSED = 8
"""Algorithms that it is asked to propose."""
WORKSPACE_BYTES = 32 << 20
"""Of an algorithm, at most."""
KINDS: Mapping[DType, int] = MappingProxyType({f32: 0, f64: 1, f16: 2, bf16: 14})
"""cudaDataType of the dtypes that it multiplies here."""
_COMPUTE_F32, _COMPUTE_F64 = 68, 70
"""cublasComputeType_t: sums in f32 of factors as they are (never tf32), and in f64."""
_TRANSPOSE_A, _TRANSPOSE_B = 3, 4
_MAX_WORKSPACE, _REDUCTION_SCHEMES, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)
"""Attributes of a product, and of a preference."""
_ONCE_ROUNDED = 2
"""The mask of schemes that add up parts of k: in the dtype of sums, each in memory of its own, so that results are
rounded once and bits repeat. Algorithms without parts are always allowed."""


class Failed(Exception):
    """The library is not there, or it refuses a product: what it says."""


LibraryFunctions: TypeAlias = Mapping[str, Callable[..., int]]
"""Its functions by name; each gives an error code, but for the one that gives the version."""


class HeuristicResult(Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, and what it takes."""

    _fields_ = (
        ("algorithm", c_uint64 * ALGORITHM_WORDS),
        ("workspace", c_size_t),
        ("status", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


_VERSION = "cublasLtGetVersion"
SIGNATURES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        _VERSION: (),
        "cublasLtCreate": (POINTER(c_void_p),),
        "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
        "cublasLtMatmulDescSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
        "cublasLtMatmulDescDestroy": (c_void_p,),
        "cublasLtMatrixLayoutCreate": (POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
        "cublasLtMatrixLayoutDestroy": (c_void_p,),
        "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
        "cublasLtMatmulPreferenceSetAttribute": (c_void_p, c_int, c_void_p, c_size_t),
        "cublasLtMatmulPreferenceDestroy": (c_void_p,),
        "cublasLtMatmulAlgoGetHeuristic": (*[c_void_p] * 7, c_int, c_void_p, POINTER(c_int)),
        "cublasLtMatmulAlgoCheck": (*[c_void_p] * 8,),
        "cublasLtMatmul": (*[c_void_p] * 14, c_size_t, c_void_p),
    }
)


@dataclass(frozen=True, slots=True)
class MatrixLayout:
    """A matrix in memory."""

    dtype: DType
    rows: int
    columns: int
    leading: int
    """Elements from the start of a column to that of the next one."""
    alignment: int = 16
    """The bytes that its address is a multiple of."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.rows * self.columns * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Problem:
    """c = a · b, with either factor transposed or not."""

    a: MatrixLayout
    b: MatrixLayout
    c: MatrixLayout
    transposes_a: bool = False
    transposes_b: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return self.a.nbytes + self.b.nbytes + self.c.nbytes


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How the library multiplies: a record that only it can read, and the bytes of workspace that it takes."""

    words: tuple[int, ...]
    workspace: int


@cache
def place(newest: int) -> str | None:
    """Where the library is, for a driver of some version of CUDA: a file, or a name that the loader knows."""
    names = [f"libcublasLt.so.{version}" for version in VERSIONS if version <= newest]
    files = [str(folder / name) for name in names for folder in _folders()]
    existing = next((path for path in files if os.path.exists(path)), None)
    return existing or next((name for name in names if _loads(name)), None)


def _folders() -> Iterator[Path]:
    for package in PACKAGES:
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in spec.submodule_search_locations or () if spec is not None else ():
            yield Path(folder) / "lib"


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def identity(where: str) -> str:
    """Return the identity of a library file, without loading it."""
    path = Path(where)
    return f"{path.name}, {path.stat().st_size} bytes" if path.is_absolute() else f"{path.name}, {version(where)}"


def version(where: str) -> str:
    """The version of a library, which is loaded."""
    number = loaded(where)[_VERSION]()
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def described(newest: int) -> str:
    """Return the version and place of the library for a driver of some version of CUDA, or how to install it."""
    where = place(newest)
    if where is None:
        return f"is not installed: {INSTALL}"
    try:
        return f"{version(where)} ({where})"
    except Failed as error:
        return str(error).removeprefix("cuBLASLt ")


def loaded(where: str) -> LibraryFunctions:
    """The functions of the library at a place."""
    try:
        library = ctypes.CDLL(where)
        functions: dict[str, Callable[..., int]] = {name: getattr(library, name) for name in SIGNATURES}
    except (OSError, AttributeError) as missing:
        raise Failed(f"cuBLASLt does not load: {missing}") from None
    for name, kinds in SIGNATURES.items():
        function: Any = functions[name]
        function.argtypes, function.restype = kinds, c_size_t if name == _VERSION else c_int
    return functions


class Library:
    """The library with a handle for the context that is current."""

    def __init__(self, functions: LibraryFunctions) -> None:
        self.functions = functions
        self.handle = self.created("cublasLtCreate")

    def call(self, name: str, *arguments: Any) -> None:
        """A function of the library; an error code is raised."""
        status = self.functions[name](*arguments)
        if status:
            raise Failed(f"{name}: status {status}")

    def created(self, name: str, *arguments: Any) -> c_void_p:
        """Call a function that creates an object, and return its handle."""
        handle = c_void_p()
        self.call(name, byref(handle), *arguments)
        return handle


class Described:
    """A problem as the library has it."""

    def __init__(self, library: Library, problem: Problem) -> None:
        self.library, self.problem = library, problem
        self._handles: list[tuple[str, c_void_p]] = []
        wide = problem.a.dtype is f64
        compute, scale = (_COMPUTE_F64, KINDS[f64]) if wide else (_COMPUTE_F32, KINDS[f32])
        self._product = self._create("cublasLtMatmulDesc", compute, scale)
        for attribute, flag in ((_TRANSPOSE_A, problem.transposes_a), (_TRANSPOSE_B, problem.transposes_b)):
            word = c_int(int(flag))
            library.call("cublasLtMatmulDescSetAttribute", self._product, attribute, byref(word), 4)
        self._layouts = [
            self._create("cublasLtMatrixLayout", KINDS[x.dtype], x.rows, x.columns, x.leading)
            for x in (problem.a, problem.b, problem.c)
        ]
        number = c_double if wide else c_float
        self._one, self._zero = number(1.0), number(0.0)

    def _create(self, kind: str, *arguments: int) -> c_void_p:
        handle = self.library.created(f"{kind}Create", *arguments)
        self._handles.append((f"{kind}Destroy", handle))
        return handle

    def proposed(self, most: int = WORKSPACE_BYTES) -> Sequence[Algorithm]:
        """The algorithms that the library expects to be fastest, the fastest first."""
        preference = self._create("cublasLtMatmulPreference")
        aligned = [x.alignment for x in (self.problem.a, self.problem.b, self.problem.c, self.problem.c)]
        words = [c_uint64(most), *map(ctypes.c_uint32, (_ONCE_ROUNDED, *aligned))]
        for attribute, word in zip((_MAX_WORKSPACE, _REDUCTION_SCHEMES, *_ALIGNMENTS), words, strict=True):
            arguments = preference, attribute, byref(word), ctypes.sizeof(word)
            self.library.call("cublasLtMatmulPreferenceSetAttribute", *arguments)
        a, b, c = self._layouts
        results, count = (HeuristicResult * PROPOSED)(), c_int()
        arguments = self.library.handle, self._product, a, b, c, c, preference, PROPOSED, results, byref(count)
        self.library.call("cublasLtMatmulAlgoGetHeuristic", *arguments)
        algorithms = [
            Algorithm(tuple(one.algorithm), one.workspace) for one in results[: count.value] if not one.status
        ]
        return [one for one in algorithms if one.workspace <= most]

    def check(self, algorithm: Algorithm) -> None:
        """Raise if the library does not multiply so, or takes more workspace."""
        a, b, c = self._layouts
        result = HeuristicResult()
        words = (c_uint64 * ALGORITHM_WORDS)(*algorithm.words)
        arguments = self.library.handle, self._product, a, b, c, c, words, byref(result)
        self.library.call("cublasLtMatmulAlgoCheck", *arguments)
        if result.status or result.workspace > algorithm.workspace:
            raise Failed(f"cublasLtMatmulAlgoCheck: status {result.status}, {result.workspace:,} bytes of workspace")

    def enqueue(self, algorithm: Algorithm, addresses: Sequence[int], workspace: int, stream: int) -> int:
        """Enqueue the product of matrices at the addresses of a, b and c; gives an error code."""
        (x, y, z), (a, b, c) = addresses, self._layouts
        words = (c_uint64 * ALGORITHM_WORDS)(*algorithm.words)
        arguments = self.library.handle, self._product, byref(self._one), x, a, y, b, byref(self._zero), z, c, z, c
        return self.library.functions["cublasLtMatmul"](*arguments, words, workspace, algorithm.workspace, stream)

    def __del__(self) -> None:
        for name, handle in getattr(self, "_handles", ()):
            self.library.functions[name](handle)


__all__ = [
    "ALGORITHM_WORDS",
    "INSTALL",
    "KINDS",
    "PROPOSED",
    "SIGNATURES",
    "WORKSPACE_BYTES",
    "Algorithm",
    "Described",
    "Failed",
    "HeuristicResult",
    "Library",
    "LibraryFunctions",
    "MatrixLayout",
    "Problem",
    "described",
    "identity",
    "loaded",
    "place",
    "version",
]  # fmt: skip
