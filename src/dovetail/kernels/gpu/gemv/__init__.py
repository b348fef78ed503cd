"""GEMV and GEMM with few rows: weights are read once, at the bandwidth of memory.

`stream` (its products: `stream_products`) with weights whole in shared memory or in a ring of stages, and how many
columns a block has; `row_stream` for one row without tensor cores, `near_tile` for parts of persistent kernels.
`gemm/engines` chooses the tile; `packed_matrix` packs weights when they are bound, `row_norm` applies a norm of the
left rows.
"""
