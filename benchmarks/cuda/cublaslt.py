"""cuBLASLt as a peer: a product of matrices by the fastest of the algorithms that it proposes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dovetail.ir.dtype import DType, bf16, f16, f32, f64
from dovetail.targets.cuda.driver.driver import driver
from dovetail.targets.cuda.library.cublaslt import (
    Algorithm,
    Described,
    Failed,
    Library,
    MatrixLayout,
    Problem,
    loaded,
    place,
)

WORKSPACE_BYTES = 64 << 20
ALIGNMENT = 256
"""Of all that torch allocates."""


class Product:
    """x @ w for dense arrays with rows of x by columns of w, in one dtype; sums are in f32, or in f64."""

    def __init__(self, library: Library, rows: int, depth: int, columns: int, dtype: DType) -> None:
        # It has columns one after the other: a dense array of rows is the transposed matrix there, and so is y = x @ w.
        shapes = ((columns, depth), (depth, rows), (columns, rows))
        a, b, c = (MatrixLayout(dtype, m, n, m, ALIGNMENT) for m, n in shapes)
        self.described = Described(library, Problem(a, b, c))
        self.algorithms = self.described.proposed(WORKSPACE_BYTES)
        if not self.algorithms:
            raise Failed(f"no algorithm for {rows}x{depth}x{columns} in {dtype.name}")

    def enqueue(self, algorithm: Algorithm, x: int, w: int, y: int, workspace: int, stream: int) -> None:
        """Launch it on arrays at these addresses."""
        status = self.described.enqueue(algorithm, (w, x, y), workspace, stream)
        if status:
            raise Failed(f"cublasLtMatmul: status {status}")


def library() -> Library:
    """The library, for the context that torch made current."""
    where = place(driver().version // 1000)
    if where is None:
        raise Failed("cuBLASLt is not installed: the wheel nvidia-cublas has it")
    return Library(loaded(where))


def product(torch: Any, x: Any, w: Any, graphed: Callable[..., Any], timed: Callable[..., float]) -> tuple[Any, Any]:
    """The fastest algorithm in a CUDA graph, and the tensor that it writes; x and w are tensors of torch."""
    dtype = {torch.float64: f64, torch.float32: f32, torch.float16: f16, torch.bfloat16: bf16}[x.dtype]
    (rows, depth), columns = x.shape, w.shape[1]
    made = Product(library(), rows, depth, columns, dtype)
    y = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=x.device)

    def step(algorithm: Algorithm) -> None:
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


__all__ = ["Product", "library", "product"]
