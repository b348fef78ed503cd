"""Addresses of first loads before the wait for the kernel before."""

from __future__ import annotations

import pytest

from dovetail.targets.cuda.code.early_addresses import with_early_addresses

HEAD = ".visible .entry k(\n\t.param .u64 k_param_0\n)\n{\n\t.reg .b32 \t%r<9>;\n\t.reg .b64 \t%rd<9>;\n"
START = "\tld.param.b64 \t%rd1, [k_param_0];\n\tmov.u32 \t%r1, %tid.x;\n"
WAIT = "\t// begin inline asm\n\tgriddepcontrol.wait;\n\t// end inline asm\n"
LOAD = "\tld.global.b32 \t%r8, [%rd3+4];\n"
END = "\tst.global.b32 \t[%rd3], %r8;\n\tret;\n}\n"


def _before(ptx: str) -> str:
    """What comes before the wait."""
    return with_early_addresses(ptx).split("griddepcontrol.wait")[0]


def test_what_an_address_needs_moves_in_its_order() -> None:
    own = "\tmul.wide.u32 \t%rd2, %r1, 4;\n\tadd.s64 \t%rd3, %rd1, %rd2;\n"
    other = "\tadd.s32 \t%r2, %r1, 7;\n"
    found = with_early_addresses(HEAD + START + WAIT + other + own + LOAD + END)
    before, after = found.split("griddepcontrol.wait")
    assert own in before and other not in before and other in after and LOAD in after
    assert "\tor.b64 \t%early0, %early0, %rd3;" in before and "@%none trap;" in before


def test_addresses_that_are_all_null_stop_nothing() -> None:
    """Tensors without elements, such as those that torch gives: a sum over none of them is 0."""
    before = _before(HEAD + START + WAIT + "\tadd.s64 \t%rd3, %rd1, 0;\n" + LOAD + END)
    (stopping,) = [line.split()[-1] for line in before.splitlines() if "%none, %early0" in line]
    assert int(stopping.rstrip(";")) % (1 << 64) >= 1 << 63, "no address has the highest bit"


@pytest.mark.parametrize(
    "own",
    [
        "\tld.global.b64 \t%rd3, [%rd1];\n",
        "\tld.global.b64 \t%rd2, [%rd1];\n\tadd.s64 \t%rd3, %rd1, %rd2;\n",
        "\tld.shared.b64 \t%rd2, [%r1];\n\tadd.s64 \t%rd3, %rd1, %rd2;\n",
        "\tld.param.b64 \t%rd2, [retval0];\n\tadd.s64 \t%rd3, %rd1, %rd2;\n",
        "\tadd.s64 \t%rd3, %rd1, 8;\n\t@%p1 add.s64 \t%rd3, %rd1, 16;\n",
        "\tmov.b64 \t%rd2, %clock64;\n\tadd.s64 \t%rd3, %rd1, %rd2;\n",
        "\t{ .reg .b64 t; mov.b64 t, 1; add.s64 %rd2, t, %rd1; }\n\tadd.s64 \t%rd3, %rd1, %rd2;\n",
    ],
    ids=["loaded", "by_a_load", "by_shared_memory", "by_a_call", "written_twice", "by_a_clock", "by_assembly"],
)
def test_what_may_differ_after_the_wait_stays(own: str) -> None:
    assert "%rd3" not in _before(HEAD + START + WAIT + own + LOAD + END)


def test_a_register_that_a_loop_writes_again_moves_nothing() -> None:
    loop = "$L1:\n\tadd.s64 \t%rd3, %rd2, 8;\n" + LOAD + "\tadd.s64 \t%rd2, %rd2, 4;\n\tbra.uni \t$L1;\n"
    ptx = HEAD + START + "\tmov.b64 \t%rd2, %rd1;\n" + WAIT + loop + END
    assert with_early_addresses(ptx) == ptx


def test_loads_after_the_first_barrier_stay_as_they_are() -> None:
    ptx = HEAD + START + WAIT + "\tbar.sync \t0;\n\tadd.s64 \t%rd3, %rd1, 8;\n" + LOAD + END
    assert with_early_addresses(ptx) == ptx


@pytest.mark.parametrize("line", ["", WAIT + "\twgmma.fence.sync.aligned;\n"])
def test_other_kernels_stay_as_they_are(line: str) -> None:
    """Those that wait for nothing, and those by warpgroups."""
    ptx = HEAD + START + line + "\tadd.s64 \t%rd3, %rd1, 8;\n" + LOAD + END
    assert with_early_addresses(ptx) == ptx
