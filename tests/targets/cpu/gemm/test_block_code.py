"""The code of products with weights in blocks: registers, loads, prefetches, and sums that hold."""

from __future__ import annotations

import re

import pytest

from dovetail.library.block_formats import FORMATS
from dovetail.targets.cpu.gemm.blocks.kernel import DIGIT_BITS, LINE, BlockKernel, block_dot, is_in_floats
from dovetail.targets.cpu.gemm.blocks.limbs import limbs_function
from dovetail.targets.cpu.gemm.blocks.schedule import blocks_function, panel_function
from dovetail.targets.cpu.gemm.blocks.unpack import expand_function
from dovetail.targets.cpu.gemm.blocks.words import block_words
from dovetail.targets.cpu.gemm.policy import BLOCK_DOTS
from dovetail.targets.cpu.isa import Host
from tests.kernels.machines import code_for, loops, written_to_stack

MACHINES = {
    "avx512_vnni": (
        Host("x86_64-unknown-linux-gnu", "icelake-server", "+avx512vnni,-prefer-256-bit", 512, 32),
        "vpdpbusd",
    ),
    "cascade_lake": (
        Host("x86_64-unknown-linux-gnu", "cascadelake", "+avx512vnni,-prefer-256-bit", 512, 32),
        "vpdpbusd",
    ),
    "avx512": (Host("x86_64-unknown-linux-gnu", "x86-64-v4", "-prefer-256-bit", 512, 32), "vpmaddubsw"),
    "avx_vnni": (Host("x86_64-unknown-linux-gnu", "alderlake", "+avxvnni", 256, 16), "vpdpbusd"),
    "avx2": (Host("x86_64-unknown-linux-gnu", "x86-64-v3", "", 256, 16), "vpmaddubsw"),
    "neon": (Host("aarch64-unknown-linux-gnu", "neoverse-n1", "+dotprod", 128, 32), "sdot"),
}
"""Machines, and the instruction that multiplies there."""
SDOT_NAME = MACHINES["neon"][1]


def _row_of(name: str, *, exact: bool) -> tuple[BlockKernel, str]:
    """The kernel of a format with NEON, and the loop that multiplies one row."""
    here, instruction = MACHINES["neon"]
    dot = block_dot(here.device)
    assert dot is not None
    kernel = BlockKernel.of(name, dot, exact=exact, registers=here.vector_registers)
    code = code_for(here, blocks_function(kernel, 1)[0].text, optimize=False)
    return kernel, max(loops(code), key=lambda body: body.count(instruction))


def _in_limbs() -> list[tuple[str, bool, str]]:
    """Formats, whether mode is exact, and machines; codes of the others become floats (test_block_floats.py)."""
    found: list[tuple[str, bool, str]] = []
    for machine, (here, _) in MACHINES.items():
        dot = block_dot(here.device)
        assert dot is not None
        every = [(name, exact) for name in ("q8_0", "q4_0", "q4_k") for exact in (True, False)]
        found += [(name, exact, machine) for name, exact in every if not is_in_floats(name, dot, exact=exact)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "exact", "machine"), _in_limbs())
def test_hot_loops_stay_in_registers(name: str, exact: bool, machine: str) -> None:
    here, instruction = MACHINES[machine]
    dot = block_dot(here.device)
    assert dot is not None
    kernel = BlockKernel.of(name, dot, exact=exact, registers=here.vector_registers)
    for each in dict.fromkeys((kernel, kernel.for_many)):
        for rows in each.tiles:
            code = code_for(here, panel_function(each, rows)[0].text, optimize=False)
            hottest = max(loops(code), key=lambda body: body.count(instruction))
            assert hottest.count(instruction) >= rows * kernel.limbs and not written_to_stack(hottest)
    assert code_for(here, limbs_function(kernel)[0].text, optimize=False)


def test_one_row_prefetches_among_its_products() -> None:
    """Lines that are prefetched at once wait for each other."""
    here, instruction = MACHINES["avx512_vnni"]
    dot = block_dot(here.device)
    assert dot is not None
    kernel = BlockKernel.of("q8_0", dot, exact=True, registers=here.vector_registers)
    code = code_for(here, panel_function(kernel, 1)[0].text, optimize=False)
    hottest = max(loops(code), key=lambda body: body.count(instruction))
    found = re.findall(rf"\t({instruction}|prefetch)", hottest)
    runs = [len(run) for run in "".join(["p" if each == "prefetch" else "d" for each in found]).split("d") if run]
    assert sum(runs) == kernel.layout.group_bytes // LINE and 2 * max(runs) < sum(runs)


def test_four_rows_read_a_panel_once() -> None:
    """All columns of a panel at a time, whose lines are prefetched once; limbs are broadcast for two vectors."""
    here, _ = MACHINES["avx512_vnni"]
    dot = block_dot(here.device)
    assert dot is not None
    kernel = BlockKernel.of("q8_0", dot, exact=True, registers=here.vector_registers)
    assert kernel.tiles == kernel.many_tiles == (4, 2, 1) and kernel.reads_once == 4
    code = code_for(here, panel_function(kernel, 4)[0].text, optimize=False)
    hottest = max(loops(code), key=lambda body: body.count("vpdpbusd"))
    assert hottest.count("vpdpbusd") == 2 * 4 * 3 * 8 and hottest.count("vpbroadcastd") <= 4 * 3 * (8 + 2)
    assert hottest.count("prefetch") == kernel.layout.group_bytes // 64


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", ["q4_k", "q6_k"])
def test_products_prefetch_what_is_expanded_next(name: str, exact: bool) -> None:
    """With AVX-512: the lines of a packed block among the products with one before, none while that is expanded."""
    here, instruction = MACHINES["avx512_vnni"]
    dot = block_dot(here.device)
    assert dot is not None
    kernel = BlockKernel.of(name, dot, exact=exact, registers=here.vector_registers)
    packed = kernel.packed
    for rows in kernel.tiles:
        code = code_for(here, panel_function(kernel, rows)[0].text, optimize=False)
        hottest = max(loops(code), key=lambda body: body.count(instruction))
        products = packed.block // 4 * kernel.limbs * rows * kernel.vectors
        lines = hottest.count("prefetcht1") * products // hottest.count(instruction)
        assert packed.block_bytes <= LINE * lines < 1.3 * packed.block_bytes
    assert "prefetch" not in code_for(here, expand_function(packed, dot.lanes)[0].text, optimize=False)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", [name for name in FORMATS if block_words(name).scales])
def test_one_row_of_two_levels_stays_in_registers(name: str, exact: bool) -> None:
    kernel, hottest = _row_of(name, exact=exact)
    assert hottest.count(SDOT_NAME) >= kernel.packed.block // 4 * kernel.limbs
    # What all groups of a block share may wait on the stack, what a group needs may not.
    assert len(written_to_stack(hottest)) < kernel.packed.groups


@pytest.mark.parametrize("name", ["q4_k", "q6_k"])
def test_one_row_in_order_prefetches_a_line_at_a_time(name: str) -> None:
    """Into both caches; with all lines of a share at once, L1 has no room for what products load."""
    kernel, hottest = _row_of(name, exact=False)
    found = re.findall(rf"pldl[12]keep|\t{SDOT_NAME}\t", hottest)
    lines = -(-kernel.packed.block_bytes // kernel.vectors // 64)
    assert found.count("pldl1keep") == found.count("pldl2keep") == lines
    between = "".join(["." if word.startswith("\t") else word[4] for word in found])
    assert re.fullmatch(r"\.*(12\.+)+", between), "products are between lines"


def test_one_row_of_bytes_with_two_codes_waits_for_no_sum() -> None:
    """Low halves and whole bytes have a sum each, which multiply-adds join; lows are taken away in the same loop."""
    kernel, hottest = _row_of("q4_k", exact=False)
    groups, quads = kernel.packed.groups, kernel.packed.groups // 4
    assert hottest.count(SDOT_NAME) == kernel.packed.block // 4 + 2 * quads
    assert not re.search(r"\t(shl|[su]cvtf)\t", hottest)
    # Three for each group, of which the first has no sum, one for the highest limb of lows, and two that scale a block.
    assert hottest.count("\tfmla\t") == 3 * groups - 1 + 3
    assert not re.findall(rf"({SDOT_NAME}\t[^\n]*\n\s*){{3}}", hottest), "others are between products"


@pytest.mark.parametrize("name", ["q4_k", "q6_k"])
def test_one_row_loads_a_word_once_for_all_groups_in_it(name: str) -> None:
    """Halves of a byte are codes of two groups; of a group a row has its bytes and three numbers, or four."""
    kernel, hottest = _row_of(name, exact=False)
    loads = len(re.findall(r"\tldu?r\t[qsd]", hottest)) + 2 * len(re.findall(r"\tldp\t[qsd]", hottest))
    of_row = kernel.packed.groups * (kernel.group // 16 + 3 + kernel.sums_apart)
    assert loads <= kernel.packed.words.count + of_row + 16


@pytest.mark.parametrize("name", FORMATS)
def test_pairs_of_products_do_not_saturate(name: str) -> None:
    """The smallest and largest codes times limbs of the same sign: 16 bits hold two products, 22 bits a group."""
    for dot in BLOCK_DOTS:
        for exact in (True, False):
            if is_in_floats(name, dot, exact=exact):
                continue
            kernel = BlockKernel.of(name, dot, exact=exact, registers=16)
            stored = (1 << FORMATS[name].bits) - 1 if kernel.layout.zero or not dot.signed else 128
            largest = 1 << DIGIT_BITS - 1
            assert kernel.group * 128 * largest <= 1 << 22
            assert dot.pairs is None or 2 * stored * largest < 1 << 15
