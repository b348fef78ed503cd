"""Attention kernels for NVIDIA GPUs beside torch's scaled_dot_product_attention.

    PYTHONPATH=src python3 benchmarks/cuda/attention.py [name ...]

Each kernel runs in a CUDA graph of ten launches; the median of the rounds counts, with ours and torch's interleaved.
Errors are relative, against the same in float64. `keep` is a causal mask of bools, as a cached prompt has it; torch has
that case as causal.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dovetail import Graph, library
from dovetail.ir.dtype import DType, bf16, bool_, f16
from dovetail.ir.leaf import input
from dovetail.ir.value import Value
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.driver import LoadedModule, driver
from dovetail.targets.cuda.runs.run import kernels_of

sys.path.insert(0, str(Path(__file__).parent))
import kernels  # pyright: ignore[reportMissingImports]

Masks = Literal["none", "causal", "keep"]


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes of an attention: batch, heads of queries and of keys, tokens, features."""

    name: str
    batch: int
    heads: int
    shared: int
    tokens: int
    width: int
    dtype: DType
    masks: Masks

    def value(self) -> Value:
        q = input("q", self.dtype[self.batch, self.heads, self.tokens, self.width])
        k, v = (input(name, self.dtype[self.batch, self.shared, self.tokens, self.width]) for name in "kv")
        call: dict[str, Any] = {}
        if self.masks == "causal":
            call = {"causal": True, "fill": -math.inf}
        elif self.masks == "keep":
            call = {"keep": input("keep", bool_[self.tokens, self.tokens]), "fill": -math.inf}
        groups = self.heads // self.shared
        return library.attention(q, k, v, scale=self.width**-0.5, groups=groups if groups > 1 else None, **call)


CASES = (
    Case("prompt 1x512 keep", 1, 16, 8, 512, 128, bf16, "keep"),
    Case("prompt 1x512 causal", 1, 16, 8, 512, 128, bf16, "causal"),
    Case("prompt 1x4096 causal", 1, 16, 8, 4096, 128, bf16, "causal"),
    Case("prompt 1x4096 keep", 1, 16, 8, 4096, 128, bf16, "keep"),
    Case("prompt 1x256 keep", 1, 16, 8, 256, 128, bf16, "keep"),
    Case("prompt 1x1024 causal", 1, 16, 8, 1024, 128, bf16, "causal"),
    Case("bert 1x128", 1, 12, 12, 128, 64, f16, "none"),
    Case("bert 1x256", 1, 12, 12, 256, 64, f16, "none"),
    Case("bert 1x512", 1, 12, 12, 512, 64, f16, "none"),
    Case("bert 32x128", 32, 12, 12, 128, 64, f16, "none"),
    Case("minilm 32x128", 32, 12, 12, 128, 32, f16, "none"),
    Case("bert 8x512", 8, 12, 12, 512, 64, f16, "none"),
)


def prepared(case: Case, tensors: dict[str, Any], y: Any, torch: Any) -> tuple[Callable[[], None], str]:
    """A function that launches our kernel, and its launch shape."""
    device = driver()
    plan = make_plan(Graph.of({"y": case.value()}), target="cuda")
    ((_, made),) = kernels_of(plan, device=device.description)
    module = LoadedModule(device, to_ptx(made.text, device.architecture).encode())
    shape = made.kernel.launch
    assert shape is not None and isinstance(shape.grid, int) and not made.kernel.sizes
    function = module.function(made.kernel.name, shape.shared_bytes)
    places = {**tensors, "y": y}
    addresses = [places[name].data_ptr() for name in made.kernel.pointers]
    grid = shape.grid

    def run() -> None:
        assert module, "it is held as long as this is"
        stream = int(torch.cuda.current_stream().cuda_stream)
        function.launch(grid, shape.block, addresses, shared_bytes=shape.shared_bytes, stream=stream)

    return run, f"{grid}x{shape.block}"


def measure(case: Case, torch: Any) -> None:
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[case.dtype.name]
    tensors = {
        name: torch.randn(case.batch, heads, case.tokens, case.width, device="cuda").to(dtype)
        for name, heads in (("q", case.heads), ("k", case.shared), ("v", case.shared))
    }
    y = torch.full_like(tensors["q"], math.nan)
    if case.masks == "keep":
        tensors["keep"] = torch.ones(case.tokens, case.tokens, device="cuda", dtype=torch.bool).tril()
    run, shape = prepared(case, tensors, y, torch)
    run()
    torch.cuda.synchronize()

    def attended(*given: Any) -> Any:
        causal, grouped = case.masks != "none", case.heads > case.shared
        return torch.nn.functional.scaled_dot_product_attention(*given, is_causal=causal, enable_gqa=grouped)

    factors = [tensors[name] for name in "qkv"]
    expected = attended(*[t.double() for t in factors])
    error = float((y.double() - expected).norm() / expected.norm())
    del expected
    torch.cuda.empty_cache()
    graphs = [kernels.graphed(torch, work) for work in (run, lambda: attended(*factors))]
    times: list[list[float]] = [[], []]
    for _ in range(kernels.ROUNDS):
        for found, graph in zip(times, graphs, strict=True):
            found.append(kernels.seconds(torch, graph))
    ours, theirs = (statistics.median(t) * 1e6 for t in times)
    print(f"{case.name:24} {ours:8.2f} {theirs:8.2f} {theirs / ours:6.2f} {error:8.1e}  {shape}", flush=True)


def main(names: list[str]) -> int:
    import torch as untyped  # pyright: ignore[reportMissingImports]

    torch: Any = untyped
    torch.manual_seed(0)
    torch.zeros(1, device="cuda")
    print(f"{driver().name}, torch {torch.__version__}")
    print(f"{'attention':24} {'ours µs':>8} {'torch µs':>8} {'ratio':>6} {'error':>8}  launch")
    for case in CASES:
        if not names or any(name in case.name for name in names):
            measure(case, torch)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
