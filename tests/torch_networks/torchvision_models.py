"""Models of torchvision with random weights, and a torchvision that imports where its own library does not load."""

# torchvision is optional, and its classes have no types here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import copy
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

from tests.torch_networks.network import Network, collected, network

torch: Any = pytest.importorskip("torch")
IMAGE = {0: "batch", 2: "height", 3: "width"}


@cache
def declare_operators() -> Any:
    """Declare the operators that torchvision registers kernels for, where its library was built for another torch.

    timm and transformers import torchvision where it is installed, and fail with it. What this returns must be held.
    """
    if find_spec("torchvision") is None:
        return None
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None


@network("vision", "torchvision")
def torchvision_mobilenet() -> Network:
    import torchvision

    model = torchvision.models.mobilenet_v2(weights=None, width_mult=0.25, num_classes=5)
    return Network(model, (torch.randn(2, 3, 64, 64),), (IMAGE,))


@network("vision", "torchvision")
def torchvision_shufflenet() -> Network:
    import torchvision

    return Network(
        torchvision.models.shufflenet_v2_x0_5(weights=None, num_classes=5),
        (torch.randn(2, 3, 64, 64),),
        ({0: "batch"},),
    )


@network("vision", "torchvision", "nn.MultiheadAttention")
def torchvision_vit() -> Network:
    from torchvision.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=5
    )
    return Network(model, (torch.randn(2, 3, 32, 32),), ({0: "batch"},))


@network("segmentation", "torchvision")
def torchvision_deeplab() -> Network:
    import torchvision

    build = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large
    model = build(weights=None, weights_backbone=None, num_classes=3)
    return Network(model, (torch.randn(2, 3, 64, 64),), (IMAGE,))


@network("optical flow", "torchvision", "sampling at points, a recurrent cell")
def torchvision_raft() -> Network:
    import torchvision

    class Flow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torchvision.models.optical_flow.raft_small(weights=None)

        def forward(self, a: Any, b: Any) -> Any:
            return self.net(a, b, num_flow_updates=2)[-1]

    flow = Flow()
    exact = copy.deepcopy(flow).double().eval().requires_grad_(False)
    for part in exact.modules():  # the coordinates of pixels are float32 whatever the weights are
        if isinstance(part, torch.nn.Conv2d):
            part.register_forward_pre_hook(lambda _, given: tuple(x.double() for x in given))
    return Network(flow, (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128)), exact=exact)


CASES = collected(globals())
