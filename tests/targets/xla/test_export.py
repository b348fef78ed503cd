"""StableHLO of models: other programs read it, and it computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import Builder, ops, save
from dovetail.cli.main import main
from dovetail.ir.dtype import f32

jax: Any = pytest.importorskip("jax")
jax_export: Any = pytest.importorskip("jax.export")


def test_a_file_computes_what_the_model_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = Builder("network")
    x, w = builder.input("x", f32[2, 3]), builder.param("w", f32[3, 4])
    builder.output("y", ops.maximum(ops.matmul(x, w), 0.0))
    save(builder.graph(), tmp_path / "model.txt")
    model = str(tmp_path / "model.txt")
    assert main(["export", model, "--stablehlo", str(tmp_path / "m.mlir")]) == 0
    assert "stablehlo.dot_general" in (tmp_path / "m.mlir").read_text(encoding="utf-8")
    assert main(["export", model, "--stablehlo", str(tmp_path / "m.bin")]) == 0
    read = jax_export.deserialize(bytearray((tmp_path / "m.bin").read_bytes()))
    assert read.platforms == ("cpu", "cuda", "rocm", "tpu")
    rng = np.random.default_rng(0)
    weights, given = (rng.standard_normal(s).astype(np.float32) for s in ((3, 4), (2, 3)))
    (found,) = read.call([weights, given])
    np.testing.assert_allclose(found, np.maximum(given @ weights, 0), rtol=1e-6)
    assert main(["export", model, "--stablehlo", str(tmp_path / "x"), "--platforms", "abacus"]) != 0
    assert "platforms are cpu" in capsys.readouterr().err
