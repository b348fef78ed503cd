"""The loop language, and what turns a step into loops: axes, affine indices, tiling."""
