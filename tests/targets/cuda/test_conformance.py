"""ONNX's own cases on the simulated device: nothing is wrong.

The standard tier runs one case of each operator below, without loading the suite, which computes all expected outputs
first. The exhaustive tier runs the first case of most operators.
"""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from typing import Any

import pytest

from tests.conformance.suite import Case, cases, judge
from tests.conformance.test_quick import LINES
from tests.targets.cuda.backend import SimulatedBackend

SPREAD = (
    ("argmax", "test_argmax_keepdims_random"),
    ("compress", "test_compress_1"),
    ("cumsum", "test_cumsum_2d_axis_1"),
    ("dequantizelinear", "test_dequantizelinear_axis"),
    ("gathernd", "test_gathernd_example_int32_batch_dim1"),
    ("gridsample", "test_gridsample_bicubic"),
    ("layernormalization", "test_layer_normalization_2d_axis1"),
    ("matmul", "test_matmul_3d"),
    ("nonmaxsuppression", "test_nonmaxsuppression_two_batches"),
    ("onehot", "test_onehot_with_axis"),
    ("pad", "test_reflect_pad"),
    ("reversesequence", "test_reversesequence_batch"),
    ("resize", "test_resize_upsample_scales_nearest"),
    ("scatterelements", "test_scatter_elements_with_reduction_min"),
    ("scatternd", "test_scatternd_add"),
    ("softmax", "test_softmax_axis_1"),
    ("topk", "test_top_k_smallest"),
    ("transpose", "test_transpose_all_permutations_3"),
    ("trilu", "test_tril_neg"),
    ("where", "test_where_example"),
)
"""Modules of the suite and one case of each."""


@cache
def node_cases() -> dict[str, Any]:
    """The cases of the modules above, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Any = importlib.import_module("onnx.backend.test.case.node")
        for module, _ in SPREAD:
            importlib.import_module(f"onnx.backend.test.case.node.{module}")
    return {case.name: case for case in found._NodeTestCases}


@cache
def by_name() -> dict[str, Case]:
    return {case.name: case for case in cases(backend=SimulatedBackend, large=False)}


@pytest.mark.heavy
@pytest.mark.parametrize("name", [name for _, name in SPREAD])
def test_one_case_of_an_operator(name: str) -> None:
    from onnx.backend.test.runner import Runner

    case = node_cases()[name]
    rep = SimulatedBackend.prepare(case.model)
    for inputs, expected in case.data_sets:
        Runner.assert_similar_outputs(expected, rep.run(inputs), rtol=case.rtol, atol=case.atol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for _, name in LINES][::2])
def test_nothing_is_wrong(name: str) -> None:
    outcome = judge(by_name()[name])
    assert outcome.verdict in ("passed", "unsupported"), outcome.why
