"""Products summed over axes."""

from __future__ import annotations

from dovetail.frontends.onnx.rule import collected

RULES = collected(globals())
