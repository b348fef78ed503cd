"""Compiles kernels with reversed accesses for x86-64 on any machine: `python -m tests.codegen.crossed avx512`.

LLVM built with assertions aborts the process where it finds itself wrong, so that a test runs this in a child.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from dovetail import Builder, Graph, Value, ops
from dovetail.dtypes import DType, f32, f64, i32
from dovetail.runtime.compile import compilation
from dovetail.targets.cpu import jit
from dovetail.targets.cpu.backend import backend_for
from dovetail.targets.cpu.isa import Host
from dovetail.targets.runtime.building.build import builder_of, kernels_of
from tests.codegen.generated import MACHINES, request

TRIPLE = "x86_64-unknown-linux-gnu"
HOSTS = {
    "avx512": Host(TRIPLE, "x86-64-v4", "+f16c,-prefer-256-bit", 512, 32),
    "avx2": Host(TRIPLE, "x86-64-v3", "+f16c", 256, 16),
}
DTYPES: tuple[DType, ...] = (f32, f64, i32)
LENGTHS = (5, 20, 23, 28, 31, 64)
"""LLVM's two cost models disagree on 20 to 23 and on 28 to 31 iterations."""


def reversed_axis(x: Value) -> Value:
    return ops.flip(x, axes=(-1,))


def results(x: Value) -> Iterator[tuple[str, Value]]:
    """What reads an axis backwards: maps and reductions, alone and together with what is read forwards."""
    back = reversed_axis(x)
    yield "map", back * back
    yield "both", back + x
    yield "sum", ops.reduce_sum(back, axes=(-1,))
    yield "min", ops.reduce_min(back, axes=(-1,))
    yield "product", ops.reduce_max(back * x, axes=(-1,))
    yield "all", ops.reduce_sum(ops.flip(x, axes=(-1, -2)), axes=(-1, -2))


def graphs() -> Iterator[tuple[str, Graph]]:
    for dtype in DTYPES:
        for length in LENGTHS:
            builder = Builder("reversed", lines=False)
            x = builder.input("x", dtype["n", length])
            for name, value in results(x):
                builder.output(name, value)
            yield f"{dtype}[n, {length}]", builder.graph()


def main(machine: str) -> None:
    asked, backend, seen = request(), backend_for(MACHINES[machine]), set[str]()
    for name, graph in graphs():
        plan = compilation(graph, asked).plan
        builder = builder_of(plan, backend)
        for job in kernels_of([builder.job(step) for step in plan.phase("run")]):
            for module in backend.code.modules(job):
                if module.name not in seen:
                    seen.add(module.name)
                    print(name, module.name, flush=True)
                    jit.assembly(module.text, optimize=module.optimize, here=HOSTS[machine])


if __name__ == "__main__":
    main(sys.argv[1])
