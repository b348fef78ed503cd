"""Real models as workloads: each gets a folder that `dovetail bench` takes, and one that cannot be had is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.bench.case import case_of
from zoo import minilm, works
from zoo.fetch import FetchError
from zoo.model import Model


def test_models_become_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"a model")
    feeds = ({"x": np.arange(3.0)}, {"x": np.arange(5.0)})
    listed = (Model("small one", "here", "m.onnx", feeds, {"rate": np.array(8000)}), Model("lost", "away", "m", feeds))

    def fetched(pin: str) -> Path:
        if pin == "away":
            raise FetchError("it is not there")
        return tmp_path

    monkeypatch.setattr(works, "fetch", fetched)
    monkeypatch.setattr(works, "models", lambda: iter(listed))
    monkeypatch.setattr(minilm, "exported", lambda folder: "torch is not installed")  # pyright: ignore
    monkeypatch.setattr(minilm, "written", lambda folder: folder / "m.onnx")  # pyright: ignore
    folder, sentences = works.written(tmp_path / "works")
    assert sentences.name == "minilm_onnx"
    case = case_of(str(folder), {}, tmp_path)
    assert case.name == "real/small_one" and case.model.read_bytes() == b"a model"
    assert case.feeds()["x"].shape == (3,) and case.fixed()["rate"] == 8000
    assert "lost is left out: it is not there" in capsys.readouterr().err
