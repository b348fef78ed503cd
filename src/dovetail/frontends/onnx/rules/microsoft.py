"""Operators of com.microsoft that optimised and quantised models use."""

from __future__ import annotations

from dovetail.frontends.onnx.rule import collected

RULES = collected(globals())
