"""A ResNet of bottleneck blocks."""

from __future__ import annotations

from dovetail import ops
from dovetail.blocks.convolution import conv_norm_act
from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.origin import scope
from dovetail.ir.type import SizeLike
from dovetail.ir.value import Value
from dovetail.library.activation import Activation


@dataclass(frozen=True, slots=True)
class ResnetShape:
    """The sizes of a network; the defaults are those of ResNet-50."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    expansion: int = 4
    classes: int = 1000
    eps: float = 1e-5


def resnet(shape: ResnetShape | None = None, *, batch: SizeLike = "b", image: SizeLike = 224) -> Graph:
    """Images in, logits of the classes out."""
    of = shape or ResnetShape()
    builder = Builder("resnet", lines=False)
    with builder.recording():
        net = _Network(builder, of)
        x = builder.input("image", f32[batch, 3, image, image])
        with scope("stem"):
            x = net.conv(x, "stem", 3, of.width, kernel=7, stride=2)
            x = ops.max_pool(x, window=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
        channels = of.width
        for stage, count in enumerate(of.blocks):
            for index in range(count):
                name = f"stages.{stage}.{index}"
                with scope(name):
                    x = net.bottleneck(x, name, channels, of.width << stage, stride=2 if stage and not index else 1)
                channels = (of.width << stage) * of.expansion
        with scope("head"):
            pooled = ops.squeeze(ops.reduce_mean(x, axes=(-2, -1)), axes=(-2, -1))
            weight, bias = builder.param("head", f32[channels, of.classes]), builder.param("head.bias", f32[of.classes])
            builder.output("logits", pooled @ weight + bias)
    return builder.graph()


@dataclass(frozen=True, slots=True)
class _Network:
    builder: Builder
    of: ResnetShape

    def conv(
        self, x: Value, name: str, into: int, out: int, *, kernel: int, stride: int = 1, act: Activation = "relu"
    ) -> Value:
        weight = self.builder.param(f"{name}.w", f32[out, into, kernel, kernel])
        channel = f32[out, 1, 1]
        norm = [self.builder.param(f"{name}.{part}", channel) for part in ("gain", "bias", "mean", "variance")]
        around = (kernel // 2,) * 4
        return conv_norm_act(x, weight, *norm, eps=self.of.eps, act=act, strides=(stride, stride), padding=around)

    def bottleneck(self, x: Value, name: str, into: int, width: int, *, stride: int) -> Value:
        """Narrow, convolve, widen, and add what came in."""
        out = width * self.of.expansion
        y = self.conv(x, f"{name}.1", into, width, kernel=1)
        y = self.conv(y, f"{name}.2", width, width, kernel=3, stride=stride)
        y = self.conv(y, f"{name}.3", width, out, kernel=1, act="none")
        if into != out or stride != 1:
            x = self.conv(x, f"{name}.shortcut", into, out, kernel=1, stride=stride, act="none")
        return ops.relu(y + x)
