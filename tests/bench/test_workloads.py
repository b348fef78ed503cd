"""The workloads of the benchmark: onnxruntime and dovetail agree on them, and their floor is counted right."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.bench.convnets import unet_block
from dovetail.bench.measure import Result, Timed, bench
from dovetail.bench.transformers import Decoder, Encoder, decoder, encoder
from dovetail.bench.workloads import feeds_for, floor_of
from dovetail.errors import OptionError
from tests.frontends.onnx.build import assert_like_onnxruntime

SMALL = Decoder(layers=1, hidden=32, heads=4, groups=2, size=8, inner=48, vocabulary=50)
MODELS = {
    "encoder": lambda: encoder(Encoder(1, 32, 4, 64, vocabulary=1000, positions=16), 2, 5),
    "prompt": lambda: decoder(SMALL, 6),
    "one token": lambda: decoder(SMALL, 1, 7),
    "convolutions": lambda: unet_block(channels=32, size=8),
}


@pytest.mark.parametrize("name", MODELS)
def test_peers_agree_on_a_workload(name: str) -> None:
    model = MODELS[name]()
    feeds = feeds_for(model)
    feeds = {k: a % 50 if a.dtype == np.int64 and "mask" not in k else a for k, a in feeds.items()}
    assert_like_onnxruntime(model, feeds, scale=20.0)


def test_the_floor_counts_products_and_the_weights_they_read() -> None:
    flops, read = floor_of(unet_block(channels=32, size=8))
    assert flops == 4 * 2 * 32 * 32 * 9 * 8 * 8
    assert read == 4 * 32 * 32 * 9 * 4


def test_the_ratio_is_the_best_peer_over_ours() -> None:
    timed = tuple(Timed(name, 0.0, [s] * 4) for name, s in (("dovetail", 2.0), ("slow", 6.0), ("quick", 3.0)))
    result = Result("w", 2, timed, 0.5, {})
    assert result.line == "bench w threads=2 ratio=1.50 best_peer=quick ms=2e+03 limit=0.50"


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(OptionError, match="nonsense"):
        bench("nonsense", 1, (), 0.1)
