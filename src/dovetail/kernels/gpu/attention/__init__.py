"""Attention with an online softmax.

Start at `offers`: the kernels that an attention may have. On tensor cores: `writer` with `tile` `choice` `products`
`groups` `softmax` `result` `staged` `lane_rows`; blocks that share the keys of few queries: `cluster` `lanes`; f32 by
multiply-adds: `fma` `fma_tile` `fma_result`; one query in f32: `row` `row_tile` `row_result`. What they read: `sources`
`rotation` `prefetch`; masks: `seen` `bits` `shifts`.
"""
