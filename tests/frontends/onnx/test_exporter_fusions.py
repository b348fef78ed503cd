"""What fuses in the exporters' files, as a text that is looked at when it changes."""

from __future__ import annotations

from collections import Counter

import pytest

import dovetail
from tests.frontends.onnx.test_exporters import FILES, FOLDER
from tests.golden import Golden


def summary(file: str) -> str:
    report = dovetail.scan(FOLDER / file)
    fused = Counter(f.rule for f in report.fused)
    missed = Counter(f"{m.rule}: {m.reason}" for m in report.missed)
    lines = [f"{file.removesuffix('.onnx')}: {len(report.kernels)} kernels"]
    lines += [f"  {count} × {rule}" for rule, count in sorted(fused.items())]
    lines += [f"  missed {count} × {why}" for why, count in sorted(missed.items())]
    return "\n".join(lines)


@pytest.mark.exhaustive
def test_fusions_of_the_exporters_files(golden: Golden) -> None:
    golden.file("tests/golden/exporters.txt", "\n\n".join(map(summary, FILES)) + "\n")
