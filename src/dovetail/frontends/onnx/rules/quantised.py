"""Quantised numbers: to and from them, and products of them."""

from __future__ import annotations

from dovetail.frontends.onnx.rule import collected

RULES = collected(globals())
