"""Reading and writing by index, and values whose size depends on data."""

from __future__ import annotations

from dovetail.frontends.onnx.rule import collected

RULES = collected(globals())
