"""dovetail in the shape of ONNX's backends, and onnxruntime as a second opinion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.adapters.onnx_backend import DovetailBackend
from dovetail.adapters.onnxruntime_peer import Peer
from dovetail.dtypes import f32, i64
from dovetail.errors import BindError, CheckError, NeedsValueError
from tests.frontends.onnx.build import model

ADD = model(["Add x z -> y"], {"x": f32["n"], "z": f32["n"]}, ["y"])
RESHAPE = model(["Reshape x s -> y"], {"x": f32["n", 4], "s": i64[2]}, ["y"])
X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.mark.slow
def test_inputs_come_in_order_or_by_name() -> None:
    ready = DovetailBackend.prepare(ADD)
    one, two = np.ones(2, np.float32), np.full(2, 2, np.float32)
    for inputs in ([one, two], (one, two), {"z": two, "x": one}):
        (y,) = ready.run(inputs)
        np.testing.assert_array_equal(y, [3, 3])
    (longer,) = ready.run([np.ones(5, np.float32)] * 2)
    assert longer.shape == (5,)


def test_too_many_or_missing_inputs_are_typed_errors() -> None:
    ready = DovetailBackend.prepare(ADD)
    for inputs in ([np.ones(2, np.float32)] * 3, [np.ones(2, np.float32)], {"q": np.ones(2, np.float32)}):
        with pytest.raises(BindError):
            ready.run(inputs)


def test_values_that_decide_the_structure_are_compiled_for() -> None:
    ready = DovetailBackend.prepare(RESHAPE)
    for shape in ([4, 2], [1, 8], [-1, 2], [4, 2]):
        (y,) = ready.run([X, np.array(shape)])
        np.testing.assert_array_equal(y, X.reshape(shape))
    with pytest.raises(NeedsValueError):
        ready.run([X])


def test_devices() -> None:
    assert DovetailBackend.supports_device("CPU") and not DovetailBackend.supports_device("CUDA")


def test_the_peer_runs_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "reshape.onnx"
    path.write_bytes(RESHAPE.SerializeToString())
    peer = Peer(path)
    assert peer.inputs == {"x", "s"} and peer.dtypes == {"x": np.dtype(np.float32), "s": np.dtype(np.int64)}
    np.testing.assert_array_equal(peer.run({"x": X, "s": np.array([4, 2])})["y"], X.reshape(4, 2))
    with pytest.raises(CheckError, match="does not run"):
        peer.run({"x": X, "s": np.array([3, 3])})
    path.write_bytes(b"junk")
    with pytest.raises(CheckError, match="does not load"):
        Peer(path)
