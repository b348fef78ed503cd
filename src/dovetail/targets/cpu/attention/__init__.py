"""Attention on CPUs: one online softmax, with lanes along queries or along features.

- From a step to a kernel: `variant` (which attentions are taken), `shape` (tiles), `policy` (measured numbers).
- The builder of a kernel, and a block of queries with its masks and positions: `tile`.
- Many queries: `driver` (tiles), `online` (the softmax; products in f32), `f16` and `amx` (products in 16 bits),
  `functions` (what kernels share), `pack_kv` (keys and values of a head, packed for its later tiles).
- Few queries, as in decode: `few`; in f16: `f16`.
- Gradients: `backward`. Functions that are compiled while a graph is lowered: `early`.
"""
