"""Networks of diffusers: a UNet with cross attention, a decoder of latents, a transformer with rope of several axes."""

# diffusers is optional, and its classes have no types here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import Any

import pytest

from tests.torch_networks.network import Network, collected, network

torch: Any = pytest.importorskip("torch")


class Plain(torch.nn.Module):
    """A method of a model with its results as a tuple, of which the first is returned."""

    def __init__(self, model: Any, names: tuple[str, ...], method: str = "forward") -> None:
        super().__init__()
        self.model, self.names, self.method = model, names, method

    def forward(self, *tensors: Any) -> Any:
        given = dict(zip(self.names, tensors, strict=True))
        return getattr(self.model, self.method)(**given, return_dict=False)[0]


@network("diffusion", "diffusers")
def diffusers_unet() -> Network:
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        cross_attention_dim=16,
        attention_head_dim=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )
    args = (torch.randn(2, 4, 16, 16), torch.tensor(3), torch.randn(2, 5, 16))
    dynamic = ({0: "batch", 2: "height", 3: "width"}, None, {0: "batch", 1: "words"})
    return Network(Plain(model, ("sample", "timestep", "encoder_hidden_states")), args, (dynamic,))


@network("diffusion", "diffusers")
def diffusers_vae_decoder() -> Network:
    import diffusers

    model = diffusers.AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
        latent_channels=4,
    )
    dynamic = (({0: "batch", 2: "height", 3: "width"},),)
    return Network(Plain(model, ("z",), "decode"), (torch.randn(2, 4, 8, 8),), dynamic)


@network("diffusion", "diffusers", "rope of several axes, attention of two streams")
def diffusers_flux() -> Network:
    import diffusers

    model = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
    )
    names = ("hidden_states", "encoder_hidden_states", "pooled_projections", "timestep", "img_ids", "txt_ids")
    tensors = [torch.randn(1, 16, 4), torch.randn(1, 6, 16), torch.randn(1, 16), torch.tensor([0.5])]
    patches, words = {1: "patches"}, {1: "words"}
    dynamic = ((patches, words, None, None, {0: "patches"}, {0: "words"}),)
    return Network(Plain(model, names), (*tensors, torch.zeros(16, 3), torch.zeros(6, 3)), dynamic)


CASES = collected(globals())
