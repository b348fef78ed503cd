"""Convolutions on CPUs: two ways to fill the lanes of vectors, and engines of their own.

A step as a convolution, candidates and their cost: `candidate`; the selection table, its records and its measured
numbers: `select` `records` `policy`.

Filters in lanes: `filters_in_lanes` is the loop nest, and its sources of pixels, each with the problems that it takes,
are `few_channels` `few_pixels` `few_pixels_kxk` `pointwise_packed`. Pixels in lanes: `direct` has them in patches,
which serves every size, `pointwise` where they are. Engines of their own: `winograd` `depthwise` `conv1d` `few_results`
`int8`.

What pixels see, packed (im2col): `patches`; packed filters: `packing`. What becomes of sums: `epilogue`. Filters
that only a run knows: `of_a_run`; transposed convolution: `transposed`.
"""
