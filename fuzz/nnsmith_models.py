"""Models that NNSmith draws, an independent generator: its abstract graphs, written as ONNX files here.

NNSmith writes ONNX through torch; the graphs themselves need only its solver. `pip install nnsmith` brings it.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from hypothesis import assume, reject
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dovetail.errors import UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import DType, of_numpy
from dovetail.ir.literal import Array
from dovetail.ir.type import TensorType
from fuzz.case import Case
from tests.frontends.onnx.build import by_onnxruntime, model, node

LARGEST = 1 << 14
"""Elements of a tensor."""
SOLVER_MS = 2_000
_DTYPES = ("float32", "int64", "bool")
_KNOWN = (*_DTYPES, "int32", "float64")
"""What may come out of casts."""
_FLOATS_ONLY = ("Div", "Pow")
"""Onnxruntime ends its process on an integer division by zero."""
_NO_FLOATS = ("CastI32", "CastI64")
"""What a NaN is as an integer is each machine's own affair."""


def is_installed() -> bool:
    """Whether there is NNSmith."""
    return importlib.util.find_spec("nnsmith") is not None


@dataclass(slots=True)
class _Writer:
    """An ONNX model while it is written."""

    generator: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    weights: dict[str, Array] = field(default_factory=dict[str, Array])

    def weight(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name


@dataclass(frozen=True, slots=True)
class _Site:
    """One operator of NNSmith's graph, where it is to be written."""

    to: _Writer
    op: Any
    """NNSmith's operator: its attributes are numbers by now."""
    inputs: tuple[str, ...]
    output: str
    rank: int
    dtype: np.dtype[Any]
    """Both of the first input."""
    shape: tuple[int, ...]
    """Of the output."""

    def write(self, op: str, *more: str, **attributes: Any) -> None:
        """One node on the inputs, and on these names after them."""
        inputs = " ".join((*self.inputs, *more))
        self.to.nodes.append(node(f"{op} {inputs} -> {self.output}", **attributes))

    def random_weight(self, *shape: int) -> str:
        """A weight of the first input's type."""
        return self.to.weight(_drawn(self.to.generator, shape, self.dtype))

    def number(self, name: str) -> int:
        """An attribute, wherever NNSmith keeps it."""
        return int(self.op.extra_attrs[name] if name in self.op.extra_attrs else getattr(self.op, name))

    def numbers(self, *names: str) -> list[int]:
        return [self.number(name) for name in names]


Rule = Callable[[_Site], None]


def _plain(op: str, **attributes: Any) -> Rule:
    return lambda site: site.write(op, **attributes)


def _reduction(op: str) -> Rule:
    return lambda site: site.write(op, site.to.weight([site.number("reduce_dim")]), keepdims=0)


def _arg(op: str) -> Rule:
    return lambda site: site.write(op, axis=site.number("reduce_dim"), keepdims=0)


def _to_shape(op: str) -> Rule:
    return lambda site: site.write(op, site.to.weight(np.array(site.shape, np.int64)))


def _triangle(upper: int) -> Rule:
    return lambda site: site.write("Trilu", site.to.weight(site.number("diagonal")), upper=upper)


def _squeeze(site: _Site) -> None:
    site.write("Squeeze", site.to.weight([site.number("reduce_dim")]))


def _transpose(site: _Site) -> None:
    first, second = site.numbers("dim0", "dim1")
    order = list(range(site.rank))
    order[first], order[second] = order[second], order[first]
    site.write("Transpose", perm=order)


def _slice(site: _Site) -> None:
    site.write("Slice", *(site.to.weight([n]) for n in site.numbers("start", "end", "axis", "step")))


def _clip(site: _Site) -> None:
    site.write("Clip", *(site.to.weight(np.array(limit, site.dtype)) for limit in (-1, 1)))


def _log2(site: _Site) -> None:
    site.to.nodes.append(node(f"Log {site.inputs[0]} -> {site.output}_log"))
    site.to.nodes.append(
        node(f"Div {site.output}_log {site.to.weight(np.array(np.log(2), site.dtype))} -> {site.output}")
    )


def _pad(mode: str) -> Rule:
    def rule(site: _Site) -> None:
        # As torch has it: pairs of before and after, the last axis first.
        pairs = [int(n) for n in site.op.padding_list]
        before, after = [0] * site.rank, [0] * site.rank
        for at in range(len(pairs) // 2):
            before[site.rank - 1 - at], after[site.rank - 1 - at] = pairs[2 * at], pairs[2 * at + 1]
        site.write("Pad", site.to.weight(before + after), mode=mode)

    return rule


def _pool(op: str, **more: int) -> Rule:
    def rule(site: _Site) -> None:
        kernel = site.numbers("kernel_h_size", "kernel_w_size")
        pads, strides = [site.number("padding")] * 4, [site.number("stride")] * 2
        site.write(op, kernel_shape=kernel, pads=pads, strides=strides, **more)

    return rule


def _conv(sizes: Sequence[str], dilations: Sequence[str]) -> Rule:
    def rule(site: _Site) -> None:
        weight = site.random_weight(*site.numbers("out_channels", "in_channels", *sizes))
        pads, strides = [site.number("padding")] * 2 * len(sizes), [site.number("stride")] * len(sizes)
        site.write("Conv", weight, pads=pads, strides=strides, dilations=site.numbers(*dilations))

    return rule


def _batch_norm(site: _Site) -> None:
    count = site.number("nfeat")
    rows = [site.random_weight(count) for _ in range(3)]
    site.write("BatchNormalization", *rows, site.to.weight((0.5 + site.to.generator.random(count)).astype(site.dtype)))


def _resize(mode: str, **more: str) -> Rule:
    def rule(site: _Site) -> None:
        site.write("Resize", "_", "_", site.to.weight(np.array(site.shape, np.int64)), mode=mode, **more)

    return rule


_SAME = (
    *("Abs", "Acos", "Add", "And", "Asin", "Atan", "Ceil", "Cos", "Div", "Equal", "Floor", "Greater", "Less", "Max"),
    *("Min", "Mul", "Neg", "Or", "Pow", "Round", "Sigmoid", "Sin", "Sqrt", "Sub", "Tan", "Where", "Xor"),
)
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **{name: _plain(name) for name in _SAME},
        "ReLU": _plain("Relu"),
        "GELU": _plain("Gelu"),
        "LeakyReLU": _plain("LeakyRelu", alpha=0.01),
        "PReLU": lambda site: site.write("PRelu", site.random_weight(1)),
        "Log2": _log2,
        "Clip": _clip,
        "Softmax": lambda site: site.write("Softmax", axis=site.number("dim")),
        "CastBool": _plain("Cast", to=onnx.TensorProto.BOOL),
        "CastF32": _plain("Cast", to=onnx.TensorProto.FLOAT),
        "CastF64": _plain("Cast", to=onnx.TensorProto.DOUBLE),
        "CastI32": _plain("Cast", to=onnx.TensorProto.INT32),
        "CastI64": _plain("Cast", to=onnx.TensorProto.INT64),
        **{f"Concat{n}": lambda site: site.write("Concat", axis=site.number("axis")) for n in range(1, 6)},
        **{f"ExpandLast{n}": _to_shape("Expand") for n in range(1, 5)},
        **{f"Reduce{name}": _reduction(f"Reduce{name}") for name in ("Max", "Mean", "Min", "Prod", "Sum")},
        "ArgMax": _arg("ArgMax"),
        "ArgMin": _arg("ArgMin"),
        "Reshape": _to_shape("Reshape"),
        "Squeeze": _squeeze,
        "Transpose": _transpose,
        "Slice": _slice,
        "Tril": _triangle(0),
        "Triu": _triangle(1),
        "ConstPad": _pad("constant"),
        "ReflectPad": _pad("reflect"),
        "ReplicatePad": _pad("edge"),
        "MaxPool2d": _pool("MaxPool"),
        "AvgPool2d": _pool("AveragePool", count_include_pad=1),
        "NCHWConv2d": _conv(("kernel_h_size", "kernel_w_size"), ("dilation_h", "dilation_w")),
        "Conv1d": _conv(("kernel_size",), ("dilation",)),
        "BatchNorm2d": _batch_norm,
        "NearestInterp": _resize("nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        "LinearInterp": _resize("linear"),
        "BilinearInterp": _resize("linear"),
    }
)
"""How each of NNSmith's operators is written; those not listed are not drawn."""


@st.composite
def nnsmith_models(draw: DrawFn) -> Case:
    """A model of NNSmith's with random arrays, and what onnxruntime gives."""
    seed, size = draw(st.integers(0, 2**31 - 1)), draw(st.integers(1, 12))
    abstract = _abstract(seed, size)
    if abstract is None:
        reject()
    assume(all(_typed(tensor)[1].name in _KNOWN for tensor in abstract.vars.values()))
    to = _Writer(np.random.default_rng(seed))
    inputs: dict[str, TensorType] = {}
    feeds: dict[str, Array] = {}
    for instruction in abstract.insts:
        op, names = instruction.iexpr.op, tuple(instruction.iexpr.args)
        output = instruction.retval()
        shape, dtype = _typed(abstract.vars[output])
        if type(op).__name__ in ("Input", "Constant"):
            array = _drawn(to.generator, shape, dtype)
            if type(op).__name__ == "Constant":
                to.weights[output] = array
            else:
                inputs[output], feeds[output] = TensorType(_ours(dtype), shape), array
            continue
        first, kind = _typed(abstract.vars[names[0]])
        RULES[type(op).__name__](_Site(to, op, names, output, len(first), kind, shape))
    outputs = [name for name in abstract.leaf_var() if name not in inputs and name not in to.weights]
    assume(outputs)
    made = model(to.nodes, inputs, outputs, initializers=to.weights)
    try:
        wanted = by_onnxruntime(made, feeds)
    except Exception:  # what onnxruntime has no kernel for is judged by float64 alone; its errors have no common base
        wanted = {}
    try:
        return Case(import_model(made), feeds, wanted)
    except UnsupportedError:
        reject()


def _ours(dtype: np.dtype[Any]) -> DType:
    found = of_numpy(dtype)
    assert found is not None
    return found


def _typed(tensor: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of one of NNSmith's tensors."""
    return tuple(int(size) for size in tensor.shape), np.dtype(tensor.dtype.numpy())


def _abstract(seed: int, size: int) -> Any:
    """NNSmith's graph for a seed, its sizes solved; None where its solver gives up."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it misses a package for drawing
        generate = importlib.import_module("nnsmith.graph_gen").model_gen
    operators = _operators()
    state = random.getstate()  # NNSmith draws from it, and so does hypothesis
    try:
        made = generate(
            opset=operators,
            method="symbolic-cinit",
            seed=seed,
            max_elem_per_tensor=LARGEST,
            max_nodes=size,
            timeout_ms=SOLVER_MS,
        )
        return made.make_concrete()
    except Exception:  # it raises whatever its solver raised
        return None
    finally:
        random.setstate(state)


@cache
def _operators() -> list[Any]:
    """NNSmith's operators that have a rule, limited to types that ONNX has for all of them."""
    module: Any = importlib.import_module("nnsmith.abstract.op")
    found: list[Any] = []
    for operator in module.FULL_OPERATOR_SETS["core"]:
        name = operator.__name__
        kinds = _DTYPES[:1] if name in _FLOATS_ONLY else _DTYPES[1:] if name in _NO_FLOATS else _DTYPES
        types = [each for each in operator.in_dtypes if all(str(t) in kinds for t in each)]
        if types and name in RULES:
            operator.in_dtypes = types
            found.append(operator)
    return found


def _drawn(generator: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype == np.bool_:
        return generator.integers(0, 2, shape).astype(np.bool_)
    if np.issubdtype(dtype, np.integer):
        return generator.integers(-4, 5, shape).astype(dtype)
    return (4 * generator.random(shape) - 2).astype(dtype)
