"""Products in f32.

- `variant`: weights that are packed before the run, and which products are served
- `block`, `micro_kernel`: the cache block (MC rows, KC steps) and the MR x NR register tile
- `pack`: panels of weights
- `narrow`: products with too few columns for a register tile
- `few_rows`: a few rows by a matrix of the run, which is read where it is
- `pair`, `pair_kernel`, `pair_pack`: products of two activations, packed in the run
- `early`: functions that a graph's products will call, compiled while the graph is lowered
"""
