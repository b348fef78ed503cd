"""GEMM on tiles, by tensor cores or multiply-adds ([0018](docs/design/0018-products-on-tensor-cores.md)).

Start at `engines`, the rows of the selection table; `contract` is a GEMM with its results. Tiles and their estimates:
`tile` `tile_cost` `fma_tile_choice` `stream_k`. A block's work: `tile_writer` `tiled` `block_tile`;
what multiplies `tensor_core_tile` (cp.async) `pipelined_tile` (TMA and warpgroups) `fma`; operands on their way:
`fragments`. Epilogues: `narrow_results` `warp_results` `scaled_rows` `head_rows` `norms`;
`library_result` is that of a product by cuBLASLt.
"""
