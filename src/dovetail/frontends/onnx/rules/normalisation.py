"""Norms, and the softmax family."""

from __future__ import annotations

from dovetail.frontends.onnx.rule import collected

RULES = collected(globals())
