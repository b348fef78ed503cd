"""Kernel families in the loop language, for any target, one a file.

- Elementwise: `map`; through any views: `index_map`, `view_fusion`; casts: `lut_cast`, `quantise`; `fill`.
- Along rows: `rows`, with steps after an anchor (`row_steps`), `rope`, `reduce`, `sort`.
- Movement and indices: `move`, `gather`, `scatter`, `resize`, `grid_sample`.
- Sums of products and windows in plain loops: `contraction_loops`, `pool_loops`.
- How they cut their work: `policy`.
"""
