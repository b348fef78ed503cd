"""Models of timm at small images with random weights."""

# timm is optional, and its classes have no types here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.torch_networks.network import Case, Network

torch: Any = pytest.importorskip("torch")


def model(
    name: str, kind: str, size: int = 64, moving: bool = False, sizes: Mapping[str, int] | None = None, **options: Any
) -> Case:
    """A model by timm's name; `moving` lets height and width change, to `sizes` where torch relates them."""

    def build() -> Network:
        import timm

        made = timm.create_model(kind, pretrained=False, num_classes=7, **options)
        axes = {0: "batch", 2: "height", 3: "width"} if moving else {0: "batch"}
        return Network(made, (torch.randn(2, 3, size, size),), (axes,), sizes=sizes or {})

    return Case(f"timm_{name}", "vision", "timm", build)


_SWIN: dict[str, Any] = {
    "img_size": 64,
    "window_size": 4,
    "embed_dim": 16,
    "depths": (1, 1, 1, 1),
    "num_heads": (1, 2, 4, 8),
}
CASES = (
    model("resnet18", "resnet18", moving=True),
    model("resnet50", "resnet50", moving=True),
    model("efficientnet_b0", "efficientnet_b0", moving=True),
    model("mobilenetv3", "mobilenetv3_small_050", moving=True),
    model("mobilenetv2", "mobilenetv2_035"),
    model("convnext", "convnext_atto"),
    model("swin", "swin_tiny_patch4_window7_224", **_SWIN),
    model("vit", "vit_tiny_patch16_224", img_size=64, depth=2),
    model(
        "vit_dynamic",
        "vit_tiny_patch16_224",
        img_size=64,
        depth=2,
        dynamic_img_size=True,
        moving=True,
        sizes={"height": 64, "width": 64},
    ),
    model("mixer", "mixer_s32_224", img_size=64),
    model("regnety", "regnety_002"),
    model("densenet", "densenet121"),
    model("nfnet", "nfnet_l0"),
    model("ghostnet", "ghostnet_050"),
    model("maxvit", "maxvit_nano_rw_256", img_size=64),
    model("fastvit", "fastvit_t8"),
    model("inception_v3", "inception_v3", size=96),
    model("halonet", "halonet26t", size=256),
    model("eva02_rope", "eva02_tiny_patch14_224", size=56, img_size=56, depth=2),
)
