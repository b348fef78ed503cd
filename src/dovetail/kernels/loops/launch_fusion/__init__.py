"""Several kernels as one launch.

`composed` puts scheduled kernels one after the other. A small kernel as the start of a larger one: `block_stages` with
`stage_narrowing` `stage_slices` `stage_warps`; `row_prologue` `head_prologue` `joined_sums`; side by side for the
same rows: `row_stages`. Operands in shared memory before they are needed: `constants_ahead` `shared_copies`
`amend`. [0025](docs/design/0025-steps-that-share-a-launch.md) has the design.
"""
