"""The rules of ATen's operators, by family."""

from dovetail.frontends.shared.rule import Registry
from dovetail.frontends.torch.importing.rule import Rule

REGISTRY = Registry(__name__, Rule)
__all__ = ["REGISTRY"]
