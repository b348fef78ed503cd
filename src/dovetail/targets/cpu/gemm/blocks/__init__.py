"""Weights that stay in the blocks of their file, multiplied as integers, or as f32 where that is faster.

- `product`: which products are served, and the driver
- `words`, `pack`: where bits of codes and scales are in a packed block, and packing
- `limbs`: what a kernel depends on, and rows of f32 as bytes (limbs) with a scale for each group
- `rows`: rows of limbs times a panel; `in_order` the same with NEON in a written order
- `expand`, `unpack`: codes and scales of two levels, expanded in L1 or unpacked in registers
- `wide`, `one_row`, `few_rows`: rows times blocks that are unpacked in registers
- `lows`: what blocks of two levels subtract
- `floats`: codes as f32
"""
