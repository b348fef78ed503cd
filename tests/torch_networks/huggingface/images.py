"""Models of images of transformers: classification, segmentation, detection, images with text."""

# transformers is optional, and its classes have no types here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import Any

import pytest

from tests.torch_networks.huggingface.models import TOKENS, ids, image_model, padded
from tests.torch_networks.network import Network, collected, network

torch: Any = pytest.importorskip("torch")

_VIT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
_SWIN: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
_STAGES: dict[str, Any] = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
vit = image_model("vit", "ViTConfig", "ViTModel", **_VIT)
vit_classes = image_model("vit_classes", "ViTConfig", "ViTForImageClassification", num_labels=5, **_VIT)
deit = image_model("deit", "DeiTConfig", "DeiTModel", **_VIT)
beit = image_model("beit", "BeitConfig", "BeitModel", use_relative_position_bias=True, **_VIT)
dinov2 = image_model("dinov2", "Dinov2Config", "Dinov2Model", **_VIT)
siglip_vision = image_model("siglip_vision", "SiglipVisionConfig", "SiglipVisionModel", **_VIT)
swin = image_model("swin", "SwinConfig", "SwinModel", **_SWIN)
swinv2 = image_model("swinv2", "Swinv2Config", "Swinv2Model", **_SWIN)
_CONVNEXT: dict[str, Any] = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
convnext = image_model("convnext", "ConvNextConfig", "ConvNextModel", moving=True, **_CONVNEXT)
convnextv2 = image_model("convnextv2", "ConvNextV2Config", "ConvNextV2Model", moving=True, **_CONVNEXT)
_RESNET: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
resnet = image_model("resnet", "ResNetConfig", "ResNetModel", moving=True, **_RESNET)
regnet = image_model(
    "regnet",
    "RegNetConfig",
    "RegNetModel",
    moving=True,
    sizes={"height": 24, "width": 24},
    embedding_size=8,
    hidden_sizes=[8, 8, 16, 16],
    depths=[1, 1, 1, 1],
    groups_width=4,
)
efficientnet = image_model(
    "efficientnet",
    "EfficientNetConfig",
    "EfficientNetModel",
    size=64,
    image_size=64,
    width_coefficient=0.25,
    depth_coefficient=0.25,
    hidden_dim=320,
)
mobilevit = image_model(
    "mobilevit",
    "MobileViTConfig",
    "MobileViTModel",
    size=64,
    image_size=64,
    hidden_sizes=[16, 24, 32],
    neck_hidden_sizes=[4, 8, 8, 8, 16, 16, 32],
    num_attention_heads=4,
)
segformer = image_model(
    "segformer",
    "SegformerConfig",
    "SegformerForSemanticSegmentation",
    size=64,
    family="segmentation",
    moving=True,
    num_attention_heads=[1, 1, 2, 2],
    decoder_hidden_size=16,
    num_labels=4,
    **_STAGES,
)
poolformer = image_model("poolformer", "PoolFormerConfig", "PoolFormerModel", size=64, **_STAGES)
dpt = image_model(
    "dpt_depth",
    "DPTConfig",
    "DPTForDepthEstimation",
    family="depth",
    backbone_out_indices=[0, 1, 2, 3],
    neck_hidden_sizes=[8, 8, 8, 8],
    fusion_hidden_size=8,
    **{**_VIT, "num_hidden_layers": 4},
)
yolos = image_model(
    "yolos",
    "YolosConfig",
    "YolosForObjectDetection",
    family="detection",
    num_detection_tokens=4,
    **{**_VIT, "image_size": [32, 32]},
)
hiera = image_model(
    "hiera",
    "HieraConfig",
    "HieraModel",
    size=64,
    embed_dim=8,
    image_size=[64, 64],
    depths=[1, 1, 1, 1],
    num_heads=[1, 1, 2, 2],
    patch_size=[7, 7],
    patch_stride=[4, 4],
    patch_padding=[3, 3],
)


@network("vision", "transformers", "tokens are left out by noise, which is passed")
def vit_mae() -> Network:
    import transformers

    model = transformers.ViTMAEModel(transformers.ViTMAEConfig(**_VIT))
    call: dict[str, Any] = {"pixel_values": torch.randn(2, 3, 32, 32), "noise": torch.rand(2, 16)}
    return Network(model, (), {"pixel_values": {0: "batch"}, "noise": {0: "batch"}}, kwargs=call)


_WORDS: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}


@network("images and text", "transformers")
def clip() -> Network:
    import transformers

    config = transformers.CLIPConfig(text_config=_WORDS, vision_config=_VIT, projection_dim=16)
    call: dict[str, Any] = {
        "input_ids": ids(2, 8),
        "pixel_values": torch.randn(2, 3, 32, 32),
        "attention_mask": padded(2, 8),
    }
    dynamic = {"input_ids": TOKENS, "pixel_values": {0: "images"}, "attention_mask": TOKENS}
    return Network(transformers.CLIPModel(config), (), dynamic, kwargs=call, sizes={"length": 11})


@network("images and text", "transformers")
def siglip() -> Network:
    import transformers

    config = transformers.SiglipConfig(text_config=_WORDS, vision_config=_VIT)
    call: dict[str, Any] = {"input_ids": ids(2, 8), "pixel_values": torch.randn(2, 3, 32, 32)}
    dynamic = {"input_ids": TOKENS, "pixel_values": {0: "images"}}
    return Network(transformers.SiglipModel(config), (), dynamic, kwargs=call, sizes={"length": 11})


@network("segmentation", "transformers")
def sam() -> Network:
    import transformers

    vision: dict[str, Any] = {"hidden_size": 16, "output_channels": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"image_size": 32, "patch_size": 8, "window_size": 2, "global_attn_indexes": [1], "num_pos_feats": 4}
    masks: dict[str, Any] = {"hidden_size": 8, "mlp_dim": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.SamConfig(
        vision_config={**vision, "mlp_dim": 32},
        prompt_encoder_config={"hidden_size": 8, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
        mask_decoder_config={**masks, "iou_head_hidden_dim": 8},
    )
    call: dict[str, Any] = {
        "pixel_values": torch.randn(1, 3, 32, 32),
        "input_points": torch.rand(1, 1, 2, 2) * 32,
        "input_labels": torch.ones(1, 1, 2, dtype=torch.int64),
    }
    return Network(transformers.SamModel(config), (), kwargs=call)


@network("detection", "transformers")
def rt_detr() -> Network:
    import transformers

    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 8, 16, 16],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    encoder: dict[str, Any] = {"encoder_hidden_dim": 16, "encoder_in_channels": [8, 16, 16], "encoder_layers": 1}
    encoder |= {"encoder_ffn_dim": 16, "encoder_attention_heads": 2, "feat_strides": [8, 16, 32]}
    decoder: dict[str, Any] = {
        "d_model": 16,
        "num_queries": 6,
        "decoder_in_channels": [16, 16, 16],
        "decoder_ffn_dim": 16,
    }
    decoder |= {"decoder_n_points": 2, "decoder_layers": 1, "decoder_attention_heads": 2, "num_denoising": 0}
    config = transformers.RTDetrConfig(backbone_config=backbone, use_pretrained_backbone=False, **encoder, **decoder)
    return Network(transformers.RTDetrModel(config), (), kwargs={"pixel_values": torch.randn(1, 3, 64, 64)})


CASES = collected(globals())
