"""The workloads of the benchmark: onnxruntime and dovetail agree on them, and inputs are drawn by their signature."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from dovetail.bench.net import Net
from dovetail.bench.workloads import feeds_for
from dovetail.errors import OptionError
from tests.bench.small import SMALL
from tests.frontends.onnx.build import assert_like_onnxruntime


@pytest.mark.heavy
@pytest.mark.parametrize("name", SMALL)
def test_peers_agree_on_a_workload(name: str) -> None:
    model = SMALL[name].build()
    assert_like_onnxruntime(model, feeds_for(model), scale=20.0)


def _picking() -> onnx.ModelProto:
    net = Net("picking")
    ids = net.input("ids", TensorProto.INT64, ["rows", 3])
    flag = net.input("flag", TensorProto.INT32, [2])
    net.output("y", net.op("Gather", net.weight("table", 7, 4), ids, axis=0))
    net.output("z", flag, TensorProto.INT32)
    return net.model()


def test_ids_stay_within_their_table_and_sizes_are_taken() -> None:
    feeds = feeds_for(_picking(), {"rows": 50})
    assert feeds["ids"].shape == (50, 3) and feeds["ids"].dtype == np.int64
    assert 2 < feeds["ids"].max() < 7
    assert set(feeds["flag"]) <= {0, 1} and feeds["flag"].dtype == np.int32


def test_a_size_that_nobody_says_is_asked_for() -> None:
    with pytest.raises(OptionError, match="rows") as caught:
        feeds_for(_picking())
    assert "--size rows=8" in caught.value.hint
