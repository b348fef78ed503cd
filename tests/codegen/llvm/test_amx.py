"""Tiles of AMX: what is emulated is what the instructions are said to do."""

from __future__ import annotations

import ctypes

import numpy as np

from dovetail.codegen.llvm.amx import TileBuilder
from dovetail.codegen.llvm.function import Parameter, Signature
from dovetail.codegen.llvm.handles import Ptr
from dovetail.targets.cpu.jit import compile_text

GIVEN = tuple([Parameter("ptr", name) for name in ("x", "w", "sums", "floats", "rounded")])


def written(*, emulated: bool) -> str:
    """A product that is added to sums, and two vectors that are rounded."""
    t = TileBuilder(emulated=emulated)
    t.configure()
    t.load(0, Ptr("%sums"), 128)
    t.load(1, Ptr("%x"), 64)
    t.load(2, Ptr("%w"), 64)
    t.multiply(0, 1, 2)
    t.store(0, Ptr("%sums"), 128)
    t.zero(0)
    t.store(0, t.ptr_add(Ptr("%sums"), 64), 128)
    two = [t.let(f"load <16 x float>, ptr {t.ptr_add(Ptr('%floats'), 64 * i)}, align 4") for i in range(2)]
    t.store_row(t.rounded(*two), Ptr("%rounded"))
    t.store_row(t.paired(*two), t.ptr_add(Ptr("%rounded"), 64))
    t.release()
    made = t.function(Signature("go", GIVEN))
    return "\n".join([*made.uses, made.text])


def test_products_and_rounding() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-256, 256, (16, 32)).astype(np.float32) for _ in range(2))
    sums, floats = rng.integers(-9, 9, (16, 32)).astype(np.float32), rng.normal(size=32).astype(np.float32)
    before, room = sums.copy(), np.zeros(128 + 64, np.uint8)
    rounded = room[-room.ctypes.data % 64 :][:128].view(np.uint16)
    columns = np.ascontiguousarray(w.T.reshape(16, 2, 16).transpose(0, 2, 1))
    arrays = [(a.view(np.uint32) >> 16).astype(np.uint16) for a in (x, columns)]
    code = compile_text(written(emulated=True), optimize=False)
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)(code.address("go"))
    run(*[array.ctypes.data for array in (*arrays, sums, floats, rounded)])
    pairs = columns.transpose(0, 2, 1).reshape(32, 16)
    assert (sums[:, :16] == before[:, :16] + x @ pairs).all() and (sums[:, 16:] == 0).all()
    bits = floats.view(np.uint32)
    wanted = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    assert (rounded[:32] == wanted).all() and (rounded[32:].reshape(16, 2) == wanted.reshape(2, 16).T).all()


def test_tiles_hold_16_rows_of_64_bytes() -> None:
    text = written(emulated=False)
    stored = [int(line.split()[2].rstrip(",")) for line in text.splitlines() if "store i64" in line]
    found = np.array(stored, np.uint64).view(np.uint8)
    assert found[0] == 1 and (found[16:32].view(np.uint16) == 64).all() and (found[48:56] == 16).all()
    assert found.sum() == 1 + 8 * 64 + 8 * 16
