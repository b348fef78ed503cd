"""GEMV and GEMM with few rows: weights are read once, at the bandwidth of memory.

`stream` (its products: `stream_products`) with weights whole in shared memory, `stream_ring` with a ring of stages,
`row_stream` for one row without tensor cores, `near_tile` for parts of persistent kernels. `stream_width` chooses the
columns of a block, and `gemm/engines` the tile; `packed_matrix` packs weights when they are bound, `row_norm` applies a
norm of the left rows.
"""
