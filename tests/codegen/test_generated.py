"""Generated code is what it was: the hash of every kernel's normalised text, for three machines."""

from __future__ import annotations

import pytest

from dovetail.bench import workloads
from tests.codegen import generated
from tests.golden import Golden

SEE = """\
`make golden` rewrites the list. To see the difference, run
`python -m tests.codegen.generated dump /tmp/now` here, the same into /tmp/before in a tree without the change, and
`diff -r /tmp/before /tmp/now`."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("machine", generated.MACHINES)
def test_kernels_have_the_text_that_they_had(golden: Golden, machine: str) -> None:
    path = f"{generated.GOLDEN}/{machine}.txt"
    lines = generated.collected().lines(machine)
    if not golden.rewrite and (golden.root / path).is_file():
        told = generated.difference((golden.root / path).read_text(encoding="utf-8").splitlines(), lines)
        if told:
            pytest.fail("\n".join([f"kernels for {machine} are not what they were:", *told, SEE]), pytrace=False)
    golden.file(path, "\n".join(lines) + "\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize("machine", generated.MACHINES)
def test_an_intrinsic_has_one_signature(machine: str) -> None:
    texts = [made.text for made in generated.collected().found[machine].values()]
    declared = generated.signatures(texts)
    told = {name: sorted(each) for name, each in declared.items() if name.startswith("llvm.") and len(each) > 1}
    assert declared and not told


def test_every_workload_is_among_the_sources() -> None:
    assert set(generated.WORKLOADS) == set(workloads.WORKLOADS)


def test_a_difference_names_kernels() -> None:
    before = ["map a x", "map b x", "rows c y", "move d z"]
    now = ["map a x", "map e x", "rows c y", "rows f y"]
    assert generated.difference(before, before) == []
    assert generated.difference(before, now) == [
        "changed: map of x (1 modules)",
        "disappeared: move of z (1 modules)",
        "appeared: rows of y (1 modules)",
    ]
