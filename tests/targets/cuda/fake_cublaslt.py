"""cuBLASLt without a GPU: products in NumPy on the memory of the fake driver, as nodes of its streams and graphs.

It proposes two algorithms, and each product is two nodes, the first of which fills the workspace. Addresses must have
the alignment that was told when the algorithm was proposed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from dovetail.ir.literal import Array
from dovetail.targets.cuda.library.cublaslt import SIGNATURES, HeuristicResult
from tests.targets.cuda.fake_driver import FakeLibrary
from tests.targets.cuda.fake_graph import Node
from tests.targets.cuda.fake_memory import number_of

DTYPES: Mapping[int, Any] = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}
WORKSPACE = 4096
"""Bytes that the second algorithm takes; the first takes none."""
NOT_SUPPORTED = 15


@dataclass
class Product:
    compute: int
    scale: int
    transposed: dict[int, int] = field(default_factory=dict[int, int])


@dataclass
class Matrix:
    kind: int
    rows: int
    columns: int
    leading: int

    def of(self, library: FakeLibrary, address: int) -> Array:
        """The matrix at an address, as a view."""
        dtype = np.dtype(DTYPES[self.kind])
        count = ((self.columns - 1) * self.leading + self.rows) * dtype.itemsize
        content = library.part(address, count)
        return np.ndarray((self.rows, self.columns), dtype, content, 0, (dtype.itemsize, self.leading * dtype.itemsize))


class FakeCublasLt(Mapping[str, Callable[..., int]]):
    """The functions of the library by name; each gives an error code."""

    def __init__(self, library: FakeLibrary) -> None:
        self.library = library
        self.objects: dict[int, Any] = {}
        self.fail: dict[str, int] = {}
        """Functions that fail, and with which error code."""
        self.calls: list[str] = []
        self.problems: list[tuple[Product, Matrix, Matrix, Matrix]] = []
        """What algorithms were wanted for."""
        self.ran: list[tuple[int, int, int]] = []
        """The addresses of a, b and c of each product that ran."""
        self.seconds = 1e-6
        """Of a product."""

    def __getitem__(self, name: str) -> Callable[..., int]:
        def called(*arguments: Any) -> int:
            if not name.endswith("Destroy"):  # the collector decides when
                self.calls.append(name)
            if name in self.fail:
                return self.fail[name]
            return getattr(self, f"_{name}")(*arguments) or 0

        return called

    def __iter__(self) -> Iterator[str]:
        return iter(SIGNATURES)

    def __len__(self) -> int:
        return len(SIGNATURES)

    def _made(self, found: Any, thing: Any) -> None:
        number = len(self.objects) + 1
        self.objects[number] = thing
        found._obj.value = number

    def _at(self, handle: Any) -> Any:
        return self.objects[number_of(handle)]

    def _cublasLtGetVersion(self) -> int:
        return 130_000

    def _cublasLtCreate(self, found: Any) -> None:
        self._made(found, "handle")

    def _cublasLtMatmulDescCreate(self, found: Any, compute: int, scale: int) -> None:
        assert (compute, scale) in ((68, 0), (70, 1)), "f32 as it is, or f64"
        self._made(found, Product(compute, scale))

    def _cublasLtMatmulDescSetAttribute(self, product: Any, attribute: int, word: Any, size: int) -> None:
        assert attribute in (3, 4) and size == 4
        self._at(product).transposed[attribute] = word._obj.value

    def _cublasLtMatrixLayoutCreate(self, found: Any, kind: int, rows: int, columns: int, leading: int) -> int:
        if not 0 < rows <= leading or columns <= 0:
            return NOT_SUPPORTED
        self._made(found, Matrix(kind, rows, columns, leading))
        return 0

    def _cublasLtMatmulPreferenceCreate(self, found: Any) -> None:
        self._made(found, dict[int, int]())

    def _cublasLtMatmulPreferenceSetAttribute(self, preference: Any, attribute: int, word: Any, size: int) -> None:
        assert size == (8 if attribute == 1 else 4) == ctypes.sizeof(word._obj)
        self._at(preference)[attribute] = word._obj.value

    def _destroyed(self, handle: Any) -> None:
        assert self.objects.pop(number_of(handle)) != "handle"
        self.objects[number_of(handle)] = None

    _cublasLtMatmulDescDestroy = _cublasLtMatrixLayoutDestroy = _cublasLtMatmulPreferenceDestroy = _destroyed

    def _cublasLtMatmulAlgoGetHeuristic(self, handle: Any, product: Any, *given: Any) -> None:
        a, b, c, d, preference, wanted, results, count = given
        told = self._at(preference)
        assert self._at(handle) == "handle" and told[3] == 2 and wanted >= 2 and c is d
        self._shape(product, a, b, c)
        self.problems.append((self._at(product), self._at(a), self._at(b), self._at(c)))
        for number, space in enumerate((0, WORKSPACE)):
            results[number].algorithm[:] = (number + 1, told[5], told[6], told[8], space, 0, 0, 1 << 63)
            results[number].workspace, results[number].status = space, 0
        count._obj.value = 2

    def _shape(self, product: Any, a: Any, b: Any, c: Any) -> tuple[int, int, int]:
        """Rows, depth and columns of a product, whose matrices must fit."""
        swapped = self._at(product).transposed
        x, y, z = map(self._at, (a, b, c))
        rows, depth = (x.columns, x.rows) if swapped[3] else (x.rows, x.columns)
        inner, columns = (y.columns, y.rows) if swapped[4] else (y.rows, y.columns)
        assert (depth, rows, columns) == (inner, z.rows, z.columns), "matrices fit"
        return rows, depth, columns

    def _cublasLtMatmulAlgoCheck(self, _: Any, product: Any, a: Any, b: Any, c: Any, d: Any, *given: Any) -> int:
        words, found = given
        if words[7] != 1 << 63:
            return NOT_SUPPORTED
        self._shape(product, a, b, c)
        result: HeuristicResult = found._obj
        result.workspace, result.status = words[4], 0
        return 0

    def _cublasLtMatmul(self, _: Any, product: Any, one: Any, x: int, a: Any, y: int, b: Any, *given: Any) -> None:
        zero, z, c, w, d, words, space, count, stream = given
        assert (one._obj.value, zero._obj.value) == (1, 0) and z == w and c is d and count == words[4]
        assert not any(at % by for at, by in zip((x, y, z), [*words][1:4], strict=True)), "the alignment that was told"
        matrices, kinds, library = (x, y, z), tuple(map(self._at, (a, b, c))), self.library
        swapped = dict(self._at(product).transposed)

        def fill() -> None:
            library.log.append("launch fill of cublaslt")
            library.part(space, count)[:] = 0xEE

        def multiply() -> None:
            library.clock += self.seconds
            library.log.append(f"launch cublaslt {words[0]}")
            self.ran.append(matrices)
            left, right, result = (kind.of(library, at) for kind, at in zip(kinds, matrices, strict=True))
            sums = np.float64 if result.dtype == np.float64 else np.float32
            p = (left.T if swapped[3] else left).astype(sums) @ (right.T if swapped[4] else right).astype(sums)
            result[...] = p.astype(result.dtype)

        for work in (*((fill,) if count else ()), multiply):
            library.add(number_of(stream), Node(None, work=work))


__all__ = ["DTYPES", "NOT_SUPPORTED", "WORKSPACE", "FakeCublasLt"]
