"""Convolutions on CPUs: two ways to fill the lanes of vectors, and engines of their own.

| subject | modules |
|---|---|
| a step as a convolution, candidates and their cost; the selection table, its records and measured numbers | `candidate` `select` `records` `policy` |
| filters in lanes: one loop nest, and its sources of pixels, each with the problems that it takes | `filters_in_lanes`: `few_channels` `few_pixels` `few_pixels_kxk` `pointwise_packed` |
| pixels in lanes: in patches, which serves every size, and where they are | `direct` `pointwise` |
| engines of their own | `winograd` `depthwise` `conv1d` `few_results` `int8` |
| what pixels see, packed (im2col): patches by phases of the strides, columns of taps; packed filters | `patches` `packing` |
| what becomes of sums: activations in registers, rows for steps in the loop language | `epilogue` |
| filters that only a run knows, transposed convolution | `of_a_run` `transposed` |
"""
