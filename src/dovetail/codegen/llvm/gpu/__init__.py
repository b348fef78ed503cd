"""The printer of the loop language for any GPU.

Start at `printer`; what it needs of one is `machine`, which the folders of vendors implement. Lanes that exchange
registers: `exchange`. Elements of matrices in registers: `matrices`. Fast functions of f32: `approximations`. Which
accesses of shared memory are apart: `scopes`.
"""
