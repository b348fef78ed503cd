"""Workloads as small as they can be."""

from __future__ import annotations

from dovetail.bench.convnets import Resnet, UnetBlock, resnet, unet_block
from dovetail.bench.transformers import Decoder, Encoder, decoder, encoder
from dovetail.bench.workloads import Workload

_ENCODER = Encoder(1, 32, 4, 64, vocabulary=100, positions=16)
_DECODER = Decoder(layers=2, hidden=32, heads=4, groups=2, size=8, inner=48, vocabulary=50)
_RESNET = Resnet(size=32, width=8, blocks=(2, 1), classes=5)
_UNET = UnetBlock(channels=32, size=8)

SMALL = {
    "encoder": Workload(_ENCODER, lambda: encoder(_ENCODER, 2, 5)),
    "prompt": Workload(_DECODER, lambda: decoder(_DECODER, 6)),
    "one token": Workload(_DECODER, lambda: decoder(_DECODER, 1, 7)),
    "resnet": Workload(_RESNET, lambda: resnet(_RESNET)),
    "convolutions": Workload(_UNET, lambda: unet_block(_UNET)),
}
