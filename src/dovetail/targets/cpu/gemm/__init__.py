"""Matrix products on CPUs: a product of a step as a kernel whose cells are panels of columns times blocks of rows.

- `policy`, `tile`: register tiles and cuts for caches, by what a device has
- `job`, `driver`: what all forms of a product put together: operands, folded axes, epilogues; cells, and where they are
- `row_panels`: rows in another form, made once for each block of rows, before panels of that form multiply them
- `groups`: rows that are sorted into groups, each with a matrix of its own
- `f32`: the register tile and the cache block, and products of two activations
- `blocks`: weights that stay in the blocks of their file
- `halves`: weights that stay in f16 or bf16
- `int8`: bytes times bytes, exact in 32 bits
- `amx`: many rows rounded to bf16, on tiles or by pairs
"""
