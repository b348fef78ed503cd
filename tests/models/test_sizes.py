"""Sizes at which something else could take over: a model of one position fuses as one of many."""

from __future__ import annotations

import pytest

import dovetail
from dovetail.models import LlamaShape, llama

SHAPE = LlamaShape(layers=2, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=100)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (1, 8), (3, 1)])
def test_attention_is_found_at_every_length(batch: int, seq: int) -> None:
    report = dovetail.compile(llama(SHAPE, batch=batch, seq=seq)).report
    assert report.count("attention") == 2 and report.count("swiglu") == 2
