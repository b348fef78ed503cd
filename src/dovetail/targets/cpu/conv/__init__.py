"""Convolutions on CPUs: two layouts of vectors' lanes, and engines of their own.

- From a step to a kernel: `candidate` (a step as a convolution, what may serve it, and its cost), `select` (the rows of
  the table, in order of preference), `records`, `policy` (measured numbers).
- Filters in lanes: `filters_in_lanes` is the loop nest. Each source of its pixels says which problems it takes:
  `few_channels` (a patch), `few_pixels` (positions), `few_pixels_kxk` (columns of taps), `pointwise_packed`.
- Pixels in lanes: `pixels_in_lanes` is the register tile of `direct` (patches; it serves every size) and of `pointwise`
  (pixels where they are).
- Engines of their own: `winograd`, `depthwise`, `conv1d`, `few_results`, `int8`.
- What they share: `patches` (what pixels see, packed: im2col), `packing` (filters), `epilogue`.
- Other steps by these: `of_a_run` (filters that only a run knows), `transposed`.
"""
