"""The loop language, and what turns a step into loops.

The language, with its walks and rewrites: `ir`. From a step to loops (its body, axes, affine indices, tiles): `body`
`axes` `affine` `along` `nest` `tiling` `folds` `policy` `requantise` `reversal`. Which block, warp and lane of a GPU
runs what: `gpu_schedule` `analysis` `split_reduce` `uniform` `repeated` `row_registers`.

`launch_fusion` makes one launch of several kernels, `persistent` one kernel whose blocks stay from layer to layer.
"""
