"""The examples of torch run, and say what they promise; times are not judged."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def functions(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


def test_a_missed_fusion_has_its_line_and_its_fix(capsys: pytest.CaptureFixture[str]) -> None:
    path = "torch_missed_fusion.py"
    functions(path)["main"](rounds=1)
    said = capsys.readouterr().out
    lines = (EXAMPLES / path).read_text(encoding="utf-8").splitlines()
    found = re.search(rf"attention at \S+ \S+ at {path}:(\d+) in Attention.forward\n  fill_hides", said)
    assert found is not None and "softmax(dim=-1) @ v" in lines[int(found[1]) - 1]
    before, after = (int(n) for n in re.findall(r"(\d+) steps", said))
    assert after < before and "attention 1 time" in said and "the same: True" in said


@pytest.mark.exhaustive
def test_models_of_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    encoder, classifier, decoder = functions("hugging_face.py")["main"]()
    said = capsys.readouterr().out
    assert "BaseModelOutput" in said and "ImageClassifierOutput" in said
    assert encoder.report.count("attention") == 1 and classifier.report.count("attention") == 1
    assert len(decoder.graph.donated) == 2
