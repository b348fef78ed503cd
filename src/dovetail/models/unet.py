"""One block of a U-Net, between an input and an output convolution."""

from __future__ import annotations

from dovetail.blocks.convolution import unet_block
from dovetail.ir.dtype import f32
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.origin import scope
from dovetail.ir.type import SizeLike
from dovetail.ops.convolution import conv


def unet(
    channels: int = 64,
    *,
    groups: int = 8,
    batch: SizeLike = "b",
    image: SizeLike = 32,
    eps: float = 1e-5,
) -> Graph:
    """Return a U-Net from an image to an image of the same size."""
    builder = Builder("unet", lines=False)
    with builder.recording():
        x = builder.input("image", f32[batch, 3, image, image])
        with scope("in"):
            x = conv(x, builder.param("in.w", f32[channels, 3, 3, 3]), padding=(1, 1, 1, 1))
        with scope("block"):
            kernel, channel = f32[channels, channels, 3, 3], f32[channels, 1, 1]
            types = {"gain": channel, "bias": channel, "w": kernel, "b": channel}
            weights = [builder.param(f"block.{i}.{part}", type) for i in (1, 2) for part, type in types.items()]
            x = unet_block(x, *weights, groups=groups, eps=eps)
        with scope("out"):
            x = conv(x, builder.param("out.w", f32[3, channels, 3, 3]), padding=(1, 1, 1, 1))
        builder.output("image", x)
    return builder.graph()
