"""A product by cuBLASLt in the place of a kernel: what a bound plan has loaded, and what a run enqueues."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from dovetail.errors import DeviceError
from dovetail.kernels.loops import ir
from dovetail.targets.cuda.driver.driver import Driver, PreparedLaunch
from dovetail.targets.cuda.library.cublaslt import Algorithm, Described, Library, Problem, loaded

NAME = "cublaslt"
"""Of the kernels that stand for products by the library."""
SPACE = "space"
"""The pointer to the workspace of an algorithm."""

_libraries: WeakKeyDictionary[Driver, Library] = WeakKeyDictionary()
_lock = threading.Lock()


def library_of(driver: Driver, where: str) -> Library:
    """The library with its handle for the context of a driver; raises `Failed`."""
    with _lock:
        library = _libraries.get(driver)
        if library is None:
            driver.call("cuCtxSetCurrent", driver.context)
            library = _libraries[driver] = Library(loaded(where))
        return library


class LibraryProduct:
    """A product by an algorithm of the library, as a run calls it."""

    def __init__(self, driver: Driver, described: Described, algorithm: Algorithm) -> None:
        self.driver, self.described, self.algorithm = driver, described, algorithm

    @classmethod
    def checked(cls, driver: Driver, library: Library, problem: Problem, algorithm: Algorithm) -> LibraryProduct:
        """Return the GEMM by a stored algorithm; raises `Failed` where the library refuses it."""
        described = Described(library, problem)
        described.check(algorithm)
        return cls(driver, described, algorithm)

    def enqueue(self, addresses: Sequence[int], stream: int) -> None:
        """Multiply what is at the addresses of a and b, with a result and a workspace at the last two."""
        self.driver.call("cuCtxSetCurrent", self.driver.context)
        *matrices, space = addresses
        status = self.described.enqueue(self.algorithm, matrices, space, stream)
        if status:
            self.driver.free_memory()  # a device that is lost says so
            raise DeviceError(
                f"cublasLtMatmul: status {status}", hint='compile with libraries="off", which does without cuBLASLt'
            )


class LibraryLaunch(PreparedLaunch):
    """A call of the library with its addresses. It is several nodes of a graph, or one, and these keep their addresses:
    nothing that it reads or writes moves from run to run."""

    __slots__ = ("product",)

    is_fixed = True

    def __init__(self, product: LibraryProduct, addresses: Sequence[int]) -> None:
        self.product = product
        self.grid, self.block, self.shared_bytes = 1, 0, 0
        self.table, self.maps = range(0), []
        self.words = (ctypes.c_int64 * len(addresses))(*addresses)

    def copy(self) -> LibraryLaunch:
        """Copy the call."""
        return LibraryLaunch(self.product, [*self.words])

    def enqueue_blocks(self, grid: int, stream: int, *, in_order: bool) -> None:
        """Call the library, which starts its kernels in the order of the stream."""
        self.product.enqueue([*self.words], stream)


def as_kernel(pointers: Sequence[str], written: str) -> ir.Kernel:
    """What stands for a product by the library among the kernels of a step; pointers are in the order of a call."""
    return ir.Kernel(NAME, tuple(pointers), (written,), "tile", (), launch=ir.Launch(1, 0))


__all__ = ["NAME", "SPACE", "LibraryLaunch", "LibraryProduct", "as_kernel", "library_of"]
