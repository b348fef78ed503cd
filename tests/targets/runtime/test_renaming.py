"""Modules that differ in content names only are compiled once: renamed symbols call what the text calls."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail import Graph, evaluate, library
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.targets.cpu import jit
from dovetail.targets.cpu.isa import Host, host
from dovetail.targets.runtime.building.code_cache import skeleton_of

HASHES = st.integers(0, 2**80 - 1).map("{:020x}".format)
CALLER = """
declare i64 @step_{a}(i64)
declare i64 @step_{b}.1(i64)
define i64 @caller_{c}(i64 %x) {{
  %y = call i64 @step_{a}(i64 %x)
  %z = call i64 @step_{b}.1(i64 %y)
  ret i64 %z
}}
"""


def emitted(text: str) -> bytes:
    return jit.emit(text, vectorize=False, optimize=False, here=host())


def step(name: str, factor: int, summand: int) -> str:
    lines = [f"  %y = mul i64 %x, {factor}", f"  %z = add i64 %y, {summand}", "  ret i64 %z"]
    return "\n".join([f"define i64 @{name}(i64 %x) {{", *lines, "}"])


def code_of(object_file: bytes) -> list[tuple[bytes, bytes]]:
    """Sections with code; tables of symbols are sorted by name."""
    found: Any = jit.llvm.ObjectFileRef.from_data(object_file)
    return [(s.name(), s.data()) for s in found.sections() if s.is_text()]


@given(old=st.lists(HASHES, min_size=3, max_size=3, unique=True), new=st.lists(HASHES, min_size=3, max_size=3))
def test_texts_are_alike_when_names_are_exchanged_one_for_one(old: list[str], new: list[str]) -> None:
    first, second = (skeleton_of(CALLER.format(**dict(zip("abc", names, strict=True)))) for names in (old, new))
    assert (first.text == second.text) == (len(set(new)) == 3)
    if first.text == second.text:
        held = b"\0".join(b"_" + name.encode() for name in old) + b"_" + b"f" * 20 + b"\0"
        assert first.renamed(held, second) == b"\0".join(b"_" + n.encode() for n in new) + b"_" + b"f" * 20 + b"\0"


def test_hashes_of_another_length_are_no_renaming() -> None:
    assert skeleton_of(f"@a_{'0' * 16}").text != skeleton_of(f"@a_{'0' * 20}").text
    assert skeleton_of("float 0x3FEE2E70E0000000, 12345678901234567890").hashes == ()


def test_renamed_code_is_what_the_text_compiles_to_and_calls_what_it_names() -> None:
    """The names are exchanged in a circle: renaming one after the other would mix them up."""
    a, b, c = "a1" * 10, "b2" * 10, "c3" * 10
    first, second = CALLER.format(a=a, b=b, c=c), CALLER.format(a=b, b=c, c=a)
    made = skeleton_of(first).renamed(emitted(first), skeleton_of(second))
    assert code_of(made) == code_of(emitted(second))
    callees = [emitted(step(f"step_{b}", 3, 1)), emitted(step(f"step_{c}.1", 5, 2))]
    code = jit.load([*callees, made])
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address(f"caller_{a}"))(7) == (7 * 3 + 1) * 5 + 2


@pytest.mark.slow
def test_drivers_of_tiles_with_other_constants_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    y = input("x", f32[1, 16, 30, 41])
    for i in range(3):
        y = library.conv_bias_act(y, param(f"w{i}", f32[16, 16, 3, 3]), padding=(1,) * 4) * (0.5 + i) + (0.25 - i)
    graph = Graph.of(y)
    texts: list[str] = []
    emit = jit.emit

    def noted(text: str, *, vectorize: bool, optimize: bool, here: Host) -> bytes:
        texts.append(text)
        return emit(text, vectorize=vectorize, optimize=optimize, here=here)

    monkeypatch.setattr(jit, "emit", noted)
    rng = np.random.default_rng(0)
    arrays = {f"w{i}": (rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32) for i in range(3)}
    given = {"x": rng.standard_normal((1, 16, 30, 41)).astype(np.float32)}
    found = dovetail.compile(graph).bind(arrays).run(given)
    drivers = [skeleton_of(text).text for text in texts if re.search(r"define void @\w*conv\w*_[0-9a-f]{20}\(", text)]
    assert drivers and len(drivers) == len(set(drivers))
    wanted = evaluate(graph, given, params=arrays)
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-4, atol=1e-4)
