"""Weights that stay in the blocks of their file, multiplied as integers, or as f32 where that is faster.

- `product`: which products are served, and the driver
- `kernel`: what the code depends on, by format, dot instruction and precision
- `schedule`: the table of schedules, by source of codes, ISA, format, precision and rows
- `words`, `pack`: where bits of codes and scales are in a packed block, and packing
- `unpack`: codes and scales in registers, and blocks of two levels expanded into L1
- `limbs`: rows of f32 as bytes (limbs) with a scale for each group; what blocks of two levels subtract
- `builder`: the words of functions that multiply limbs with codes
- `rows`, `in_order`, `one_row`: schedules in LLVM's order, and with NEON in the order in which they are written
- `floats`: codes as f32
"""
