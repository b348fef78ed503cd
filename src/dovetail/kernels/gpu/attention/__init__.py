"""Attention with an online softmax on GPUs.

Start at `choice`: the kernels that an attention may have, their conditions and estimates. `sources` says what it reads,
`tile` how blocks, warps and lanes share it. On tensor cores: `writer`, with `keys` (how a block comes to its keys),
`fragments` (products and weights in registers) and `lanes` (few queries by multiply-adds). Without them: `fma` in f32,
and `row` for one query. All of them use `masks`, the online `softmax` and the `results` that combine partial ones.
"""
