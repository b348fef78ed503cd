"""The code of kernels for people is the code that is compiled."""

from __future__ import annotations

import pytest

from dovetail import Builder, ops
from dovetail.dtypes import f32
from dovetail.runtime.compile import compilation, make_request
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.code_view import ASM, CODE, LLVM
from dovetail.targets.cpu.jit import assembly
from dovetail.targets.runtime.building.build import build


@pytest.mark.heavy
def test_a_listing_is_what_was_compiled() -> None:
    b = Builder("small")
    x, w = b.input("x", f32[8, 16]), b.input("w", f32[16, 32])
    b.output("y", ops.reduce_sum(ops.tanh(x @ w), axes=(-1,)))
    plan = compilation(b.graph(), make_request(target="cpu")).plan
    built = build(plan, BACKEND)
    for step, job in zip(plan.phase("run"), built.jobs, strict=True):
        assert job is not None
        modules = BACKEND.code.modules(job)  # pyright: ignore[reportArgumentType]  # nothing branches here
        llvm = CODE.listing(plan, step, LLVM)
        assert llvm.startswith(modules[-1].text.strip("\n")) and all(m.text.strip("\n") in llvm for m in modules)
        own = modules[-1]
        assert CODE.listing(plan, step, ASM).startswith(
            assembly(own.text, vectorize=own.vectorize, optimize=own.optimize).strip("\n")
        )
