"""Every network, and whether its package is installed."""

from __future__ import annotations

from importlib.util import find_spec

from tests.torch_networks import diffusers_models, timm_models, torchvision_models, trouble
from tests.torch_networks.huggingface import images as hf_images
from tests.torch_networks.huggingface import steps as hf_steps
from tests.torch_networks.huggingface import text as hf_text
from tests.torch_networks.huggingface import translation_and_sound
from tests.torch_networks.network import Case
from tests.torch_networks.plain import attention, dense, images, sequences, steps, vision

PLAIN = (*dense.CASES, *attention.CASES, *steps.CASES, *vision.CASES, *images.CASES, *sequences.CASES)
"""Those that need torch alone."""
ALL = (
    *PLAIN,
    *trouble.CASES,
    *hf_text.CASES,
    *hf_steps.CASES,
    *translation_and_sound.CASES,
    *hf_images.CASES,
    *timm_models.CASES,
    *torchvision_models.CASES,
    *diffusers_models.CASES,
)


def named(name: str) -> Case:
    """The network of a name."""
    return next(case for case in ALL if full_name(case) == name)


def full_name(case: Case) -> str:
    return f"{case.package}/{case.name}"


def is_installed(package: str) -> bool:
    return find_spec(package) is not None
