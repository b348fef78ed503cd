"""Functions that kernels share: each has a content name, and is compiled once for all its callers."""

from __future__ import annotations

import ctypes

import pytest

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import Ptr
from dovetail.codegen.llvm.kernel import WORDS, KernelCode, assemble, kernel_function, one_of
from dovetail.kernels.problems.epilogue import RELU, Epilogue
from dovetail.kernels.spec import Job, Tiles
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.conv.few_channels import few_channels_code
from dovetail.targets.cpu.conv.filters_in_lanes import RegisterTile
from dovetail.targets.cpu.conv.winograd.kernel import winograd_code
from dovetail.targets.cpu.conv.winograd.scheme import FOUR, TWO
from tests.kernels.convolving import WIDE

_Y = (Parameter("ptr", "y"),)
PUT = Signature("kernel.put", _Y)


def storing(name: str, number: int, linkage: str = "") -> Function:
    t = Builder()
    t.store_i64(number, Ptr("%y"))
    return t.function(Signature(name, _Y), linkage=linkage)


def kernel(called: Signature, *given: int) -> Function:
    t = Builder()
    t.call(called, t.load_ptr(WORDS), *given)
    return kernel_function(t)


def stored(code: KernelCode) -> int:
    """What a kernel stores."""
    (entry,) = BACKEND.code.functions([Job(code.template(["y"], (), 0), {}, Tiles(1, 1))])
    y = ctypes.c_int64(-1)
    words = (ctypes.c_void_p * 1)(ctypes.addressof(y))
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(entry.address)
    kernel(words, 0, 1, None)
    return y.value


@pytest.mark.slow
def test_kernels_that_differ_share_functions_that_do_not() -> None:
    tile = RegisterTile(WIDE, 2, 14, Epilogue(RELU, True), True)
    wide, narrow = winograd_code(FOUR, tile), winograd_code(TWO, tile)
    both = {part.name.partition("_")[0] for part in {*wide.shared} & {*narrow.shared}}
    assert wide.name != narrow.name and both == {"turn", "gather.16", "places"}
    # Tiles of listed steps are others, and blocks of filters may be wider: results are transposed by one function.
    rows = few_channels_code(RegisterTile(WIDE, 3, 9, Epilogue(RELU, True), False))
    assert {part.name.partition("_")[0] for part in {*wide.shared} & {*rows.shared}} == {"turn", "gather.16"}


def test_functions_of_one_name_and_other_texts_are_others() -> None:
    one, two = (assemble("share", [kernel(PUT)], [storing(PUT.name, n)]) for n in (1, 2))
    assert one.name != two.name and (stored(one), stored(two)) == (1, 2)


def test_the_function_that_is_told_is_called() -> None:
    members = {n: storing(f"choice.{n}", 10 * n, "internal") for n in (1, 2, 4)}
    choice = one_of("choice", members)
    for n in members:
        code = assemble("choose", [kernel(choice.signature, n)], [choice])
        assert stored(code) == 10 * n


def test_a_function_without_callers_is_not_compiled() -> None:
    code = assemble("alone", [kernel(PUT)], [storing(f"kernel.{name}", 3) for name in ("put", "spare")])
    assert [part.name.partition("_")[0] for part in code.shared] == ["put"]


def test_what_is_written_with_vectors_is_compiled_as_it_is() -> None:
    code = winograd_code(FOUR, RegisterTile(WIDE, 2, 14, Epilogue(RELU, True), True))
    modules = BACKEND.code.modules(Job(code.template(["x", "w", "b", "y"], (), 0), {}, Tiles(1, 1)))
    assert len(modules) == 5 and not any(module.optimize for module in modules)
    assert [module.is_shared for module in modules] == [True] * 4 + [False]
