"""Fewer launches: steps that share one ([0025](docs/design/0025-steps-that-share-a-launch.md)).

Start at `fused_launches`. What blocks products from each other: `footprints`. Small steps in a launch of others:
`side_steps` `row_launches`. Norms, attentions and heads at the start or the end of products: `near_launches`
`near_constants` `norms_between` `normed_products` `split_products`. Each way and why it is not taken: `launch_choices`.
`launches` says which kernels start while those before them still run.
"""
