"""Attention with an online softmax on GPUs.

Start at `choice`: the kernels that an attention may have, their conditions and estimates. `sources` says what it reads,
and where its keys are: rows of a tensor, or pages that a table names. `tile` says how blocks, warps and lanes share it.
On tensor cores: `writer`, with `keys` (how a block comes to its keys), `fragments` (scores and products in registers)
and `lanes` (few queries by multiply-adds). Without them: `fma` in f32, and `row` for one query or keys in pages. All of
them use `masks`, the online `softmax` and the `results` that combine partial ones.
"""
