"""Attention on CPUs: one online softmax, with lanes along queries or along features.

| subject | modules |
|---|---|
| which attentions are taken, and by which kernel | `variant` |
| what a kernel depends on: tiles, the workspace, measured numbers | `shape` `policy` |
| the builder of a kernel; a block of queries, its masks and positions | `tile` |
| many queries: the loop over tiles, the online softmax, functions that kernels share | `driver` `online` `functions` |
| its products: in f32 (`online`), in f16, on tiles of AMX in bf16 | `f16` `amx` |
| keys and values of a head, packed for its later tiles | `pack_kv` |
| few queries, as in decode | `few` (in f16: `f16`) |
| gradients | `backward` |
| functions compiled while a graph is lowered | `early` |
"""
