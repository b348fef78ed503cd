"""Functions that kernels share: each has a name that tells its text, and is compiled once for all who call it."""

from __future__ import annotations

import ctypes

from dovetail.codegen.llvm.module import Code, Written, one_of
from dovetail.kernels.spec import Job, Tiles
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.conv.epilogue import Epilogue
from dovetail.targets.cpu.conv.few_channels.kernel import row_text
from dovetail.targets.cpu.conv.few_pixels.kernel import Square
from dovetail.targets.cpu.conv.winograd.kernel import winograd_text
from dovetail.targets.cpu.conv.winograd.scheme import FOUR, TWO
from tests.kernels.convolving import WIDE


def storing(name: str, number: int) -> Written:
    return f"define {name}(ptr %y) nounwind {{\n  store i64 {number}, ptr %y\n  ret void\n}}", ()


def kernel(called: str, given: str = "") -> Written:
    header = "define void @kernel(ptr %arguments, i64 %begin, i64 %end, ptr %scratch) nounwind {"
    y = "  %y = load ptr, ptr %arguments"
    return f"{header}\n{y}\n  call void {called}(ptr %y{given})\n  ret void\n}}", ()


def stored(code: Code) -> int:
    """What a kernel stores."""
    (entry,) = BACKEND.code.functions([Job(code.template(["y"], (), 0), {}, Tiles(1, 1))])
    y = ctypes.c_int64(-1)
    words = (ctypes.c_void_p * 1)(ctypes.addressof(y))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(entry.address)(
        words, 0, 1, None
    )
    return y.value


def test_kernels_that_differ_share_functions_that_do_not() -> None:
    square = Square(WIDE, 2, 14, Epilogue("relu", True), True)
    wide, narrow = winograd_text(FOUR, square), winograd_text(TWO, square)
    both = {part.name.partition("_")[0] for part in {*wide.parts} & {*narrow.parts}}
    assert wide.name != narrow.name and both == {"turn", "gather.16", "places"}
    # Tiles of listed steps are others, and blocks of filters may be wider: results are turned round by one function.
    rows = row_text(Square(WIDE, 3, 9, Epilogue("relu", True), False))
    assert {part.name.partition("_")[0] for part in {*wide.parts} & {*rows.parts}} == {"turn", "gather.16"}


def test_functions_of_one_name_and_other_texts_are_others() -> None:
    one, two = (Code.of("share", [kernel("@kernel.put")], [storing("void @kernel.put", n)]) for n in (1, 2))
    assert one.name != two.name and (stored(one), stored(two)) == (1, 2)


def test_the_function_that_is_told_is_called() -> None:
    members = {n: storing(f"internal void @choice.{n}", 10 * n) for n in (1, 2, 4)}
    for n in members:
        code = Code.of("choose", [kernel("@choice", f", i64 {n}")], [one_of("@choice", members)])
        assert stored(code) == 10 * n


def test_a_function_that_nobody_calls_is_not_compiled() -> None:
    code = Code.of("alone", [kernel("@kernel.put")], [storing(f"void @kernel.{name}", 3) for name in ("put", "spare")])
    assert [part.name.partition("_")[0] for part in code.parts] == ["put"]


def test_what_is_written_with_vectors_is_compiled_as_it_is() -> None:
    code = winograd_text(FOUR, Square(WIDE, 2, 14, Epilogue("relu", True), True))
    modules = BACKEND.code.modules(Job(code.template(["x", "w", "b", "y"], (), 0), {}, Tiles(1, 1)))
    assert len(modules) == 5 and not any(module.optimize for module in modules)
    assert [module.is_shared for module in modules] == [True] * 4 + [False]
