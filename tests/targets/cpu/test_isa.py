"""What code may use of a machine: all that it has, or one set of instructions by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.errors import OptionError
from dovetail.settings import ISA
from dovetail.targets.cpu.isa import host, restricted

X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
HASWELL: dict[str, bool] = dict.fromkeys(["avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"], True)
ROOT = Path(__file__).resolve().parents[3]
QUICK = (
    "tests/codegen/llvm/test_loops.py",
    "tests/targets/cpu/gemm/test_micro_kernel.py",
    "tests/targets/cpu/attention/test_variant.py::test_narrow_floats",
    "tests/targets/cpu/attention/test_variant.py::test_few_queries_with_masks",
    "tests/targets/cpu/conv/direct/test_variant.py::test_one_code_for_every_size",
    "tests/targets/cpu/conv/winograd/test_variant.py::test_one_code_for_every_size",
    "tests/kernels/families/test_map.py::test_activations",
    "tests/kernels/families/test_rows.py::test_other_floats",
)
"""A sample of every kind of kernel."""


@pytest.mark.parametrize(
    ("triple", "isa", "bits", "registers"),
    [(X86, "sse", 128, 16), (X86, "avx2", 256, 16), (ARM, "neon", 128, 32), ("arm64-apple-darwin", "neon", 128, 32)],
)
def test_a_set_of_instructions_says_how_wide_vectors_are(triple: str, isa: str, bits: int, registers: int) -> None:
    found = restricted(triple, isa, HASWELL)
    assert (found.vector_bits, found.vector_registers) == (bits, registers)
    assert found.lanes == bits // 32
    assert found.device.has("fma_by_lane") == (isa == "neon")
    assert not found.device.has("vnni") and not found.device.has("embedded_broadcast")


@pytest.mark.parametrize(("triple", "isa"), [(X86, "neon"), (ARM, "avx2"), (X86, "AVX2"), (X86, "mmx")])
def test_unknown_sets_are_refused(triple: str, isa: str) -> None:
    with pytest.raises(OptionError, match=f"{ISA} is '{isa}'") as caught:
        restricted(triple, isa, HASWELL)
    assert "use one of" in caught.value.hint


def test_what_the_machine_lacks_is_refused() -> None:
    with pytest.raises(OptionError, match="is 'avx512'") as caught:
        restricted(X86, "avx512", HASWELL)
    assert caught.value.hint == "this machine lacks avx512f"
    with pytest.raises(OptionError):
        restricted(X86, "avx2", HASWELL | {"f16c": False})


@pytest.mark.exhaustive
@pytest.mark.skipif(host().vector_bits <= 256, reason="tests use no wider vectors here anyway")
def test_kernels_with_avx2_only() -> None:
    """Most machines have no more, and what LLVM makes for them differs: it calls libraries that are not there."""
    around = {**os.environ, ISA: "avx2"}
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", *QUICK]
    done = subprocess.run(tests, env=around, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_arm_leaves_vectors_of_unknown_width_alone() -> None:
    """LLVM would remark on stderr, loop by loop, that it may not use them."""
    assert restricted(ARM, "neon", {}).features == "-sve"


def test_who_converts_f16() -> None:
    assert [restricted(X86, isa, HASWELL).device.has("f16_conversion") for isa in ("sse", "avx2")] == [False, True]
    assert restricted(ARM, "neon", {}).device.has("f16_conversion")
