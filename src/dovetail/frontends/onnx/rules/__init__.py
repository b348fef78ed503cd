"""Rules by family. Each rule is one entry in its family's file, which is imported when a model has its operator."""

from dovetail.frontends.onnx.importing.rule import Rule
from dovetail.frontends.onnx.rules.families import FAMILIES
from dovetail.frontends.shared.rule import Registry

REGISTRY = Registry(__name__, Rule, FAMILIES)
__all__ = ["REGISTRY"]
