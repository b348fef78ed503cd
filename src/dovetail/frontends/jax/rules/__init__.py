"""The rules of StableHLO's operations, by family."""

from dovetail.frontends.jax.importing import Rule
from dovetail.frontends.shared.rule import Registry

REGISTRY = Registry(__name__, Rule)
__all__ = ["REGISTRY"]
