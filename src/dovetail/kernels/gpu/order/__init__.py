"""Sort, top-k, scans and scatter on GPUs.

`sort` with `sort_keys` and `sort_passes`; `scan`; `scatter`; `passes` are steps of several kernels in sequence.
"""
