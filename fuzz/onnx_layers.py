"""Random networks as ONNX files: layers as exporters write them, with details drawn that differ between exporters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from numpy.typing import ArrayLike

from dovetail.frontends.onnx import import_model
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.ir.type import TensorType
from fuzz.case import Case
from tests.frontends.onnx.build import by_onnxruntime, model, node

ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "Gelu", "HardSwish", "LeakyRelu", "Elu", "Softplus", "Silu", "QuickGelu")
WIDTHS = (1, 3, 8, 16, 24, 33, 64)
CHANNELS = (1, 3, 4, 8, 16, 24, 32)


@dataclass(slots=True)
class Network:
    """A model while it is written. `shape` is that of the value named `at`; a size of None is the symbolic batch."""

    draw: DrawFn
    random: np.random.Generator
    batch: int
    shape: list[int | None]
    at: str = "x"
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    weights: dict[str, Array] = field(default_factory=dict[str, Array])
    kept: list[tuple[str, list[int | None]]] = field(default_factory=list[tuple[str, list[int | None]]])
    """Earlier values that residual sums may read."""

    def one_of(self, choices: Sequence[object]) -> object:
        return self.draw(st.sampled_from(choices))

    def number(self, choices: Sequence[int]) -> int:
        return self.draw(st.sampled_from(choices))

    def chance(self) -> bool:
        return self.draw(st.booleans())

    def weight(self, *shape: int, low: float | None = None) -> str:
        """A new weight: normal numbers scaled by the fan-in, or uniform ones above `low`."""
        name = f"w{len(self.weights)}"
        fan_in = max(1, int(np.prod(shape[1:])) if len(shape) > 1 else 4)
        array = self.random.standard_normal(shape) / np.sqrt(fan_in)
        if low is not None:
            array = low + self.random.random(shape)
        self.weights[name] = array.astype(np.float32)
        return name

    def constant(self, array: ArrayLike) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node on these inputs; its result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(node(f"{op} {' '.join(inputs)} -> {name}", name=name, **attributes))
        return name

    def be(self, at: str, shape: Sequence[int | None]) -> None:
        """Move on to a new value."""
        self.at, self.shape = at, list(shape)

    @property
    def width(self) -> int:
        last = self.shape[-1]
        assert last is not None
        return last


def activation(net: Network) -> None:
    """One of the usual curves, some as several nodes."""
    name = str(net.one_of(ACTIVATIONS))
    if name == "Silu":
        net.at = net.add("Mul", net.at, net.add("Sigmoid", net.at))
    elif name == "QuickGelu":
        scaled = net.add("Mul", net.at, net.constant(np.float32(1.702)))
        net.at = net.add("Mul", net.at, net.add("Sigmoid", scaled))
    elif name == "LeakyRelu":
        net.at = net.add(name, net.at, alpha=0.1)
    else:
        net.at = net.add(name, net.at)


def dense(net: Network) -> None:
    """A product with a weight, with a bias of drawn rank."""
    out = net.number(WIDTHS)
    if len(net.shape) == 2 and net.chance():
        net.be(net.add("Gemm", net.at, net.weight(out, net.width), net.weight(out), transB=1), [*net.shape[:-1], out])
        return
    at = net.add("MatMul", net.at, net.weight(net.width, out))
    if net.chance():
        bias = net.weight(*[1] * net.number((0, 0, 1, 2)), out)
        if len(net.weights[bias].shape) > len(net.shape):
            bias = net.weight(out)
        at = net.add("Add", at, bias) if net.chance() else net.add("Add", bias, at)
    net.be(at, [*net.shape[:-1], out])


def layer_norm(net: Network) -> None:
    """A norm of the last axis, as one node or spelled out."""
    gain, bias, eps = net.weight(net.width), net.weight(net.width), float(net.number((1, 5))) * 1e-5
    if net.chance():
        net.at = net.add("LayerNormalization", net.at, gain, bias, axis=-1, epsilon=eps)
        return
    mean = net.add("ReduceMean", net.at, net.constant(np.array([-1])))
    centred = net.add("Sub", net.at, mean)
    square = net.add("Pow", centred, net.constant(np.float32(2))) if net.chance() else net.add("Mul", centred, centred)
    variance = net.add("ReduceMean", square, net.constant(np.array([-1])))
    deviation = net.add("Sqrt", net.add("Add", variance, net.constant(np.float32(eps))))
    at = net.add("Mul", net.add("Div", centred, deviation), gain)
    net.at = net.add("Add", at, bias) if net.chance() else at


def residual(net: Network) -> None:
    """A sum, product or joining with an earlier value of the same shape."""
    fits = [name for name, shape in net.kept if shape == net.shape and name != net.at]
    if fits:
        other = str(net.one_of(fits))
        net.at = net.add(str(net.one_of(("Add", "Add", "Mul", "Sub", "Max"))), net.at, other)


def elementwise(net: Network) -> None:
    """A scalar, a row or a full tensor met by the value, with a cast or a clip in between."""
    match net.number((0, 1, 2, 3)):
        case 0:
            net.at = net.add(str(net.one_of(("Add", "Mul", "Sub", "Div"))), net.at, net.constant(np.float32(1.5)))
        case 1:
            net.at = net.add("Mul", net.at, net.weight(net.width))
        case 2:
            limits = (net.constant(np.float32(-1)), net.constant(np.float32(2)))
            net.at = net.add("Clip", net.at, *limits)
        case _:
            there = net.add("Cast", net.at, to=onnx.TensorProto.FLOAT16)
            net.at = net.add("Cast", there, to=onnx.TensorProto.FLOAT)


def softmax(net: Network) -> None:
    net.at = net.add("Softmax", net.at, axis=net.number((-1, 1)))


def reduction(net: Network) -> None:
    """One axis less, unless that leaves only the batch."""
    if len(net.shape) < 3:
        return
    kind, axis = str(net.one_of(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"))), net.number((1, 2))
    keep = net.chance()
    at = net.add(kind, net.at, net.constant(np.array([axis])), keepdims=int(keep))
    left = list(net.shape)
    left[axis : axis + 1] = [1] if keep else []
    net.be(at, left)


def slicing(net: Network) -> None:
    """A part of one axis, or its halves joined the other way round."""
    axis = len(net.shape) - 1
    half = net.width // 2
    if half == 0:
        return
    ends = [net.constant(np.array([v])) for v in (0, half, np.iinfo(np.int64).max, axis)]
    first = net.add("Slice", net.at, ends[0], ends[1], ends[3])
    second = net.add("Slice", net.at, ends[1], ends[2], ends[3])
    if net.chance():
        net.be(net.add("Concat", net.add("Neg", second), first, axis=axis), net.shape)
    else:
        net.be(second, [*net.shape[:-1], net.width - half])


def attention(net: Network) -> None:
    """Heads of queries, keys and values, a mask of a drawn kind."""
    if len(net.shape) != 3 or net.shape[1] is None:
        return
    length, width = net.shape[1], net.width
    heads, size = net.number((1, 2, 4)), net.number((4, 8, 16))
    shape = net.constant(np.array([0, length, heads, size]))

    def head(perm: Sequence[int]) -> str:
        at = net.add("MatMul", net.at, net.weight(width, heads * size))
        if net.chance():
            at = net.add("Add", at, net.weight(heads * size))
        return net.add("Transpose", net.add("Reshape", at, shape), perm=list(perm))

    queries, keys, values = head((0, 2, 1, 3)), head((0, 2, 3, 1)), head((0, 2, 1, 3))
    root = net.constant(np.float32(np.sqrt(size)))
    if net.chance():
        scores = net.add("Div", net.add("MatMul", queries, keys), root)
    else:
        scores = net.add("MatMul", net.add("Div", queries, root), keys)
    mask = np.triu(np.full((length, length), -1e4, np.float32), 1)
    match net.number((0, 1, 2)):
        case 1:
            scores = net.add("Add", scores, net.constant(mask))
        case 2:
            scores = net.add("Where", net.constant(mask == 0), scores, net.constant(np.float32(-1e9)))
        case _:
            pass
    mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), values)
    merged = net.add("Transpose", mixed, perm=[0, 2, 1, 3])
    net.be(net.add("Reshape", merged, net.constant(np.array([0, length, heads * size]))), [None, length, heads * size])


def convolution(net: Network) -> None:
    """A convolution of drawn kernel, stride, padding, dilation and groups, sometimes with batch norm."""
    channels, height, width = (s or 0 for s in net.shape[1:])
    kernel, stride, dilation = net.number((1, 3, 3, 5)), net.number((1, 1, 2)), net.number((1, 1, 2))
    reach = dilation * (kernel - 1)
    padding = net.number((0, reach // 2, reach // 2))
    if min(height, width) + 2 * padding <= reach:
        return
    groups = channels if net.chance() and net.chance() else 1
    out = channels * net.number((1, 2)) if groups > 1 else net.number(CHANNELS)
    inputs = [net.at, net.weight(out, channels // groups, kernel, kernel)]
    if net.chance():
        inputs.append(net.weight(out))
    attributes = {"pads": [padding] * 4, "strides": [stride] * 2, "dilations": [dilation] * 2, "group": groups}
    at = net.add("Conv", *inputs, **attributes)
    if net.chance():
        rows = (net.weight(out), net.weight(out), net.weight(out), net.weight(out, low=0.5))
        at = net.add("BatchNormalization", at, *rows)
    sides = [(side + 2 * padding - reach - 1) // stride + 1 for side in (height, width)]
    net.be(at, [None, out, *sides])


def pooling(net: Network) -> None:
    height, width = (s or 0 for s in net.shape[2:])
    if min(height, width) < 3:
        return
    if net.chance() and net.chance():
        net.be(net.add("GlobalAveragePool", net.at), [*net.shape[:2], 1, 1])
        return
    kind, stride, padding = str(net.one_of(("MaxPool", "AveragePool"))), net.number((1, 2)), net.number((0, 1))
    at = net.add(kind, net.at, kernel_shape=[3, 3], strides=[stride] * 2, pads=[padding] * 4)
    net.be(at, [*net.shape[:2], *((side + 2 * padding - 3) // stride + 1 for side in (height, width))])


def channel_scale(net: Network) -> None:
    """Squeeze and excitation: each channel scaled by a curve of the channels' means."""
    channels = net.shape[1] or 0
    mean = net.add("GlobalAveragePool", net.at)
    gate = net.add("Conv", mean, net.weight(channels, channels, 1, 1), net.weight(channels))
    net.at = net.add("Mul", net.at, net.add(str(net.one_of(("Sigmoid", "HardSigmoid"))), gate))


def upsample(net: Network) -> None:
    sides = [s or 0 for s in net.shape[2:]]
    if max(sides) > 16:
        return
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    mode = str(net.one_of(("nearest", "linear")))
    extra = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"} if mode == "nearest" else {}
    net.be(net.add("Resize", net.at, "_", scales, mode=mode, **extra), [*net.shape[:2], *(2 * s for s in sides)])


def flatten(net: Network) -> None:
    """Pixels become tokens."""
    channels, height, width = (s or 0 for s in net.shape[1:])
    rows = net.add("Reshape", net.at, net.constant(np.array([0, channels, height * width])))
    net.be(net.add("Transpose", rows, perm=[0, 2, 1]), [None, height * width, channels])


Layer = Callable[[Network], None]
ON_TOKENS: tuple[Layer, ...] = (
    dense,
    dense,
    activation,
    layer_norm,
    residual,
    residual,
    elementwise,
    softmax,
    reduction,
    slicing,
    attention,
)
ON_IMAGES: tuple[Layer, ...] = (
    convolution,
    convolution,
    convolution,
    activation,
    activation,
    residual,
    elementwise,
    pooling,
    channel_scale,
    upsample,
    flatten,
)


@st.composite
def networks(draw: DrawFn) -> Case:
    """A network of drawn layers with a symbolic or fixed batch, the arrays of one run, and what onnxruntime gives."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    images = draw(st.booleans())
    batch = draw(st.sampled_from((1, 2, 3)))
    rest = (
        [draw(st.sampled_from(CHANNELS)), *draw(st.sampled_from(([7, 7], [8, 12], [14, 14], [17, 5], [32, 32])))]
        if images
        else [*draw(st.sampled_from(([], [1], [5], [16], [33]))), draw(st.sampled_from(WIDTHS))]
    )
    net = Network(draw, random, batch, [None, *rest])
    outputs: list[str] = []
    for _ in range(draw(st.integers(1, 8))):
        before = net.at
        draw(st.sampled_from(ON_IMAGES if len(net.shape) == 4 else ON_TOKENS))(net)
        net.kept.append((net.at, list(net.shape)))
        if before != "x" and before != net.at and draw(st.integers(0, 7)) == 7:
            outputs.append(before)
    if not net.nodes:
        activation(net)
    made = model(
        net.nodes,
        {"x": TensorType(f32, (symbol("n") if draw(st.booleans()) else batch, *rest))},
        list(dict.fromkeys((*outputs, net.at))),
        initializers=net.weights,
    )
    feeds = {"x": random.standard_normal((batch, *rest)).astype(np.float32)}
    return Case(import_model(made), feeds, by_onnxruntime(made, feeds))
