"""Weights of two bytes.

- `product`: which products are served, panels, and the driver
- `pack`: compiled loops that transpose and scale weights
- `kernel`: f32 rows times weights that are widened
- `f16`: rows and sums in f16, for `precision="fast"`
"""
