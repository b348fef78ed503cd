"""Generated code is what it was: a digest of the kernels of each family, for every device."""

from __future__ import annotations

import pytest

from dovetail.bench import workloads
from tests.codegen import generated
from tests.codegen.cases import cases
from tests.codegen.dump import DEVICES, Dumper
from tests.codegen.golden import difference, table
from tests.codegen.normal import signatures
from tests.golden import Golden

PATH = "tests/golden/generated.txt"
SEE = """\
`python -m tests.codegen.compare --diff` shows what differs from where the branch left main, and `make golden` rewrites
the table."""


@pytest.mark.exhaustive
def test_kernels_have_the_text_that_they_had(golden: Golden) -> None:
    dumper = Dumper()
    for case in cases():
        dumper.add(case, DEVICES if case.quick else case.golden)
    declared = {name: each for name, each in signatures(dumper.texts).items() if name.startswith("llvm.")}
    twice = [sorted(each) for each in declared.values() if len(each) > 1]
    assert declared and not twice, "an intrinsic has one signature: LLVM takes no two, and other versions take no other"
    assert not dumper.texts.refused, "LLVM takes every text, also for machines that no test runs on"
    lines = table(dumper)
    assert not [line for line in lines if " other " in line], "every kernel has a family"
    if not golden.rewrite and (golden.root / PATH).is_file():
        told = difference((golden.root / PATH).read_text(encoding="utf-8").splitlines(), lines)
        if told:
            pytest.fail("\n".join(["kernels are not what they were:", *told, SEE]), pytrace=False)
    golden.file(PATH, "\n".join(lines) + "\n")


def test_every_workload_is_among_the_sources() -> None:
    assert set(generated.WORKLOADS) == set(workloads.WORKLOADS)


def test_names_of_cases_are_unique() -> None:
    names = [case.name for case in cases()]
    assert len(names) == len({*names})
    assert all({*case.devices, *case.golden} <= {*DEVICES} for case in cases())


def test_a_difference_names_families() -> None:
    before = ["avx2 gemm 3 aa", "avx2 map 4 bb", "sm_80 launches 9 cc", "sm_80 scan 1 dd"]
    now = ["avx2 gemm 3 ee", "avx2 map 4 bb", "avx2 rows 2 ff", "sm_80 launches 8 gg"]
    assert difference(before, before) == []
    assert difference(before, now) == [
        "avx2 gemm: 3 kernels, others than before",
        "avx2 rows: none before, 2 kernels now",
        "sm_80 launches: 9 before, 8 now",
        "sm_80 scan: 1 kernels before, none now",
    ]
